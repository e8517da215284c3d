"""What the search needs of a sampler, whatever proposes behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from spica_async.sampling.types import Suggestion, Trial


@dataclass(slots=True)
class SamplerStats:
    """What a sampler has done so far.

    Attributes:
        asks: Asks that were answered.
        suggestions: Suggestions in those answers, stand-ins included.
        stand_ins: Suggestions that a quasi-random draw had to make.
        restarts: Optimizer processes started in place of an earlier one.
        suggest_seconds: Wall time spent in asks, in seconds, given-up ones included.
    """

    asks: int = 0
    suggestions: int = 0
    stand_ins: int = 0
    restarts: int = 0
    suggest_seconds: float = 0.0


class Sampler(Protocol):
    """Proposes assignments for one branch and learns from their trials."""

    @property
    def stats(self) -> SamplerStats:
        """The tallies so far; kept up to date in place."""

    async def ask(self, count: int) -> list[Suggestion]:
        """Proposes `count` assignments, numbered on from the last ask.

        A suggestion is pending from here until its trial is told; later asks explore around it.

        Raises:
            ValueError: If `count` is below 1.
        """

    async def tell(self, trials: Sequence[Trial]) -> None:
        """Takes in what is known of pending suggestions, in any order.

        Raises:
            ValueError: If a trial answers no pending suggestion, differs from it, or does not hold
                one finite number per objective. Then none of `trials` is taken in.
        """
