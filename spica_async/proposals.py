"""Where a branch's suggestions come from: its study, or a list of all there is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from spica_async.sampling.port import Sampler, SamplerStats
from spica_async.sampling.types import Trial
from spica_async.space.branch import BranchSpace, Selection
from spica_async.space.parameters import Assignment
from spica_async.space.projection import Projection


@dataclass(frozen=True, slots=True)
class Proposal:
    """One suggestion in terms of the search space.

    Attributes:
        number: its place among the branch's suggestions, from 0.
        selection: what to evaluate.
        assignment: the study's own values, empty for an enumerated one.
        projection: how the latent shape was projected, where there was one.
        stand_in: why a quasi-random draw stands in for the optimizer, if one does.
    """

    number: int
    selection: Selection
    assignment: Assignment
    projection: Projection | None = None
    stand_in: str | None = None


class Proposer(Protocol):
    """Makes proposals and hears what became of them."""

    @property
    def stats(self) -> SamplerStats:
        """What was asked so far, and how long that took."""

    async def propose(self, count: int) -> list[Proposal]:
        """Exactly `count` proposals, numbered on from the last."""

    async def tell(self, told: Sequence[tuple[Proposal, dict[str, float] | None]]) -> None:
        """Take in what proposals measured, by objective; None for one that was not feasible."""


class StudyProposer:
    """Proposals of a sampler's study, each projected onto the pool."""

    def __init__(self, space: BranchSpace, sampler: Sampler) -> None:
        self._space = space
        self._sampler = sampler

    @property
    def stats(self) -> SamplerStats:
        """The sampler's own."""
        return self._sampler.stats

    async def propose(self, count: int) -> list[Proposal]:
        """Ask the sampler and project what it proposes."""
        proposals = []
        for suggestion in await self._sampler.ask(count):
            selection, projection = self._space.select(suggestion.assignment)
            proposals.append(
                Proposal(
                    suggestion.number,
                    selection,
                    suggestion.assignment,
                    projection,
                    suggestion.stand_in,
                )
            )
        return proposals

    async def tell(self, told: Sequence[tuple[Proposal, dict[str, float] | None]]) -> None:
        """Tell the sampler, with the projection kept beside each trial."""
        await self._sampler.tell(
            [
                Trial(
                    proposal.number,
                    proposal.assignment,
                    metrics,
                    proposal.projection.as_metadata() if proposal.projection else {},
                )
                for proposal, metrics in told
            ]
        )


class EnumeratedProposer:
    """Every distinct selection of a small branch once, in an order that the seed decides."""

    def __init__(self, space: BranchSpace, *, seed: int) -> None:
        count = space.distinct_selections
        if count is None:
            raise ValueError("a branch with a range of KV loads has no end of selections")
        self._space = space
        self._order = list(range(count))
        random.Random(f"{seed}/{space.mode}").shuffle(self._order)  # noqa: S311  # an order
        self._next = 0
        self._stats = SamplerStats()

    @property
    def stats(self) -> SamplerStats:
        """What was asked so far; making a list takes no time worth telling."""
        return self._stats

    async def propose(self, count: int) -> list[Proposal]:
        """The next of the list."""
        numbers = range(self._next, self._next + count)
        self._next += count
        self._stats.asks += 1
        self._stats.suggestions += count
        return [
            Proposal(number, self._space.selection(self._order[number]), {}) for number in numbers
        ]

    async def tell(self, told: Sequence[tuple[Proposal, dict[str, float] | None]]) -> None:
        """A list learns nothing."""
