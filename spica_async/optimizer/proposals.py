"""Where a branch's suggestions come from: its study, or a list of all there is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from schemas.journal import Proposed, SamplerStats
from schemas.results import ProposalSource
from spica_async.optimizer.assignments import accept
from spica_async.optimizer.neighbours import neighbours
from spica_async.optimizer.port import Sampler
from spica_async.optimizer.types import Suggestion, Trial
from spica_async.space.branch import BranchSpace, Selection
from spica_async.space.parameters import Assignment
from spica_async.space.projection import Projection

Claim = Callable[[Selection], bool]
"""Whether a selection is of a sample that nobody has asked about; it is then taken."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One suggestion in terms of the search space.

    Attributes:
        number: its place among the branch's suggestions, from 0.
        selection: what to evaluate.
        source: who proposes it.
        assignment: the study's own values, empty for an enumerated one.
        projection: how the latent shape was projected, where there was one.
        stand_in: why a quasi-random draw stands in for the optimizer, if one does.
        index: its place in the list of all selections, for an enumerated one.
    """

    number: int
    selection: Selection
    source: ProposalSource
    assignment: Assignment
    projection: Projection | None = None
    stand_in: str | None = None
    index: int | None = None


Verdicts = Sequence[tuple[Proposal, dict[str, float] | None]]
"""What proposals measured, by objective; None for one that was not feasible."""


@dataclass(frozen=True, slots=True)
class PastProposals:
    """Proposals that were made together before a sweep was resumed."""

    proposals: Sequence[Proposal]


@dataclass(frozen=True, slots=True)
class PastObserved:
    """What was observed at once before a sweep was resumed."""

    observed: Verdicts


Past = Sequence[PastProposals | PastObserved]


class Proposer(Protocol):
    """Makes proposals and hears what became of them."""

    @property
    def stats(self) -> SamplerStats:
        """What was asked so far, and how long that took."""

    async def propose(self, count: int) -> list[Proposal]:
        """Exactly `count` proposals, numbered on from the last."""

    async def instead_of(self, duplicates: Sequence[Proposal], claim: Claim) -> list[Proposal]:
        """Proposals of samples that nobody has, at most one for each of these; maybe none."""

    async def observe(self, verdicts: Verdicts) -> None:
        """Take in what proposals measured."""

    async def restore(self, past: Past) -> None:
        """Go on where another proposer of this branch was, before anything else is asked."""


def proposal_of(space: BranchSpace, proposed: Proposed) -> Proposal:
    """A proposal as it was made before, from what was written down of it.

    Raises:
        ValueError: it is not of this space.
    """
    if proposed.index is not None:
        try:
            selection = space.selection(proposed.index)
        except IndexError:
            raise ValueError(f"there is no selection {proposed.index}") from None
        return Proposal(proposed.number, selection, proposed.source, {}, index=proposed.index)
    assignment = accept(space.parameters, proposed.assignment or {})
    selection, projection = space.select(assignment)
    return Proposal(
        proposed.number, selection, proposed.source, assignment, projection, proposed.stand_in
    )


class StudyProposer:
    """Proposals of a sampler's study, each projected onto the pool.

    Args:
        space: of the branch.
        sampler: what proposes.
        seeds: selections to try right after the first proposal, which is the centre of the space.
        finds_neighbours: whether a sample beside it stands in for one that is known already. A
            sampler that should do all by itself is asked again instead.
        seed: makes the choice of neighbours.
    """

    def __init__(
        self,
        space: BranchSpace,
        sampler: Sampler,
        *,
        seeds: Sequence[Selection] = (),
        finds_neighbours: bool = False,
        seed: int = 0,
    ) -> None:
        self._space = space
        self._sampler = sampler
        self._seeds = [space.assignment_of(selection) for selection in seeds]
        self._finds_neighbours = finds_neighbours
        self._seed = seed
        self._begun = False

    @property
    def stats(self) -> SamplerStats:
        """The sampler's own."""
        return self._sampler.stats

    async def propose(self, count: int) -> list[Proposal]:
        """The centre, the seeds, then what the sampler proposes, projected onto the pool."""
        suggestions: list[Suggestion] = []
        if self._seeds and not self._begun:
            suggestions += await self._sampler.ask(1)
        self._begun = True
        missing = count - len(suggestions)
        now, self._seeds = self._seeds[:missing], self._seeds[missing:]
        proposals = await self._proposals(suggestions, "optimizer")
        proposals += await self._place(now, "warm_start")
        if len(proposals) < count:
            asked = await self._sampler.ask(count - len(proposals))
            proposals += await self._proposals(asked, "optimizer")
        return proposals

    async def instead_of(self, duplicates: Sequence[Proposal], claim: Claim) -> list[Proposal]:
        """Samples near these that nobody has, where any are found."""
        if not self._finds_neighbours:
            return []
        found = []
        for duplicate in duplicates:
            rng = random.Random(f"{self._seed}/{self._space.mode}/{duplicate.number}")  # noqa: S311  # an order
            for near in neighbours(self._space.parameters, duplicate.assignment, rng):
                # A hundred projections may be needed, of a millisecond each.
                await asyncio.sleep(0)
                if claim(self._space.select(near)[0]):
                    found.append(near)
                    break
        return await self._place(found, "neighbour")

    async def _place(
        self, assignments: Sequence[Assignment], source: ProposalSource
    ) -> list[Proposal]:
        if not assignments:
            return []
        placed = await self._sampler.place(assignments)
        return await self._proposals(placed, source)

    async def _proposals(
        self, suggestions: Sequence[Suggestion], source: ProposalSource
    ) -> list[Proposal]:
        made = []
        for suggestion in suggestions:
            made.append(self._proposal(suggestion, source))
            # Each takes a millisecond or more where the pool is large.
            await asyncio.sleep(0)
        return made

    def _proposal(self, suggestion: Suggestion, source: ProposalSource) -> Proposal:
        selection, projection = self._space.select(suggestion.assignment)
        return Proposal(
            suggestion.number,
            selection,
            "stand_in" if suggestion.stand_in else source,
            suggestion.assignment,
            projection,
            suggestion.stand_in,
        )

    async def restore(self, past: Past) -> None:
        """Let the sampler know all that another one was asked for, given and shown."""
        for event in past:
            if isinstance(event, PastObserved):
                await self.observe(event.observed)
                continue
            self._begun = True
            placed = sum(one.source == "warm_start" for one in event.proposals)
            self._seeds = self._seeds[placed:]
            await self._sampler.restore(
                [Suggestion(one.number, one.assignment, one.stand_in) for one in event.proposals],
                asked=any(one.source in {"optimizer", "stand_in"} for one in event.proposals),
            )

    async def observe(self, verdicts: Verdicts) -> None:
        """Pass trials on to the sampler, with the projection kept beside each trial."""
        await self._sampler.observe(
            [
                Trial(
                    proposal.number,
                    proposal.assignment,
                    metrics,
                    proposal.projection.as_metadata() if proposal.projection else {},
                )
                for proposal, metrics in verdicts
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
        """What was asked so far; making a list takes no time."""
        return self._stats

    async def propose(self, count: int) -> list[Proposal]:
        """The next of the list."""
        numbers = range(self._next, self._next + count)
        self._next += count
        self._stats.asks += 1
        self._stats.suggestions += count
        return [
            Proposal(number, self._space.selection(index), "list", {}, index=index)
            for number in numbers
            for index in [self._order[number]]
        ]

    async def instead_of(self, duplicates: Sequence[Proposal], claim: Claim) -> list[Proposal]:  # noqa: ARG002  # the protocol's
        """None: a list holds no duplicates."""
        return []

    async def observe(self, verdicts: Verdicts) -> None:
        """A list learns nothing."""

    async def restore(self, past: Past) -> None:
        """Go on behind what was proposed."""
        self._next = sum(len(one.proposals) for one in past if isinstance(one, PastProposals))
