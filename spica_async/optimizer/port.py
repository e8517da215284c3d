"""What the search needs of a sampler, whatever proposes behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from schemas.journal import SamplerStats
from spica_async.optimizer.types import Suggestion, Trial
from spica_async.space.parameters import Assignment


class Sampler(Protocol):
    """Proposes assignments for one branch and learns from their trials."""

    @property
    def stats(self) -> SamplerStats:
        """The tallies so far; kept up to date in place."""

    async def ask(self, count: int) -> list[Suggestion]:
        """Proposes `count` assignments, numbered on from the last ask.

        A suggestion is pending from here until its trial is observed; later asks explore around it.

        Raises:
            ValueError: If `count` is below 1.
        """

    async def place(self, assignments: Sequence[Assignment]) -> list[Suggestion]:
        """Takes in trials of the caller's own choosing as pending, as if they had been proposed.

        Raises:
            ValueError: If the study does not allow an assignment. Then none is taken in.
        """

    async def restore(self, suggestions: Sequence[Suggestion], *, asked: bool) -> None:
        """Takes in, as pending, what an earlier sampler of the same study was asked for or given.

        Done in the order in which it happened, with what was observed in between, this sampler then
        proposes what that one would have.

        Args:
            suggestions: The next ones, in order.
            asked: Whether an ask made some of them, rather than the caller all.

        Raises:
            ValueError: If they are not the next ones, or the study does not allow one of them.
        """

    async def observe(self, trials: Sequence[Trial]) -> None:
        """Takes in what is known of pending suggestions, in any order.

        Raises:
            ValueError: If a trial answers no pending suggestion, differs from it, or does not hold
                one finite number per objective. Then none of `trials` is taken in.
        """
