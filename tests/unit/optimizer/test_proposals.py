"""Proposals of a study, and of a list of all there is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from schemas.config import SmartSearchConfig
from schemas.journal import SamplerStats
from spica_async.optimizer.proposals import EnumeratedProposer, Proposal, StudyProposer
from spica_async.optimizer.types import Suggestion, Trial
from spica_async.space.branch import BranchSpace
from spica_async.space.parameters import Assignment

ASSIGNMENT: Assignment = {"used_gpu_ratio": 0.9, "agg_max_num_seqs": 512}


class FakeSampler:
    def __init__(self) -> None:
        self.stats = SamplerStats()
        self.observed: list[Trial] = []

    async def ask(self, count: int) -> list[Suggestion]:
        return [Suggestion(7 + n, ASSIGNMENT, stand_in="late" if n else None) for n in range(count)]

    async def place(self, assignments: Sequence[Assignment]) -> list[Suggestion]:
        raise AssertionError("nothing is to be placed")

    async def restore(self, suggestions: Sequence[Suggestion], *, asked: bool) -> None:
        raise AssertionError("nothing is to be restored")

    async def observe(self, trials: Sequence[Trial]) -> None:
        self.observed += trials


@pytest.fixture
def space(
    make_config: Callable[..., SmartSearchConfig], make_space: Callable[..., BranchSpace]
) -> BranchSpace:
    return make_space(make_config({"agg_max_num_seqs": [256, 512]}))


def test_a_study_proposes_what_its_assignments_project_to(space: BranchSpace) -> None:
    sampler = FakeSampler()
    proposer = StudyProposer(space, sampler)
    first, second = asyncio.run(proposer.propose(2))
    selection, projection = space.select(ASSIGNMENT)
    assert first == Proposal(7, selection, "optimizer", ASSIGNMENT, projection)
    assert second == Proposal(8, selection, "stand_in", ASSIGNMENT, projection, "late")
    assert selection.config.used_gpus == 4
    assert proposer.stats is sampler.stats


def test_a_study_hears_of_each_trial_with_its_projection(space: BranchSpace) -> None:
    sampler = FakeSampler()
    proposer = StudyProposer(space, sampler)
    first, second = asyncio.run(proposer.propose(2))
    asyncio.run(proposer.observe([(second, {"objective": 1.0}), (first, None)]))
    assert first.projection is not None
    metadata = first.projection.as_metadata()
    assert sampler.observed == [
        Trial(8, ASSIGNMENT, {"objective": 1.0}, metadata),
        Trial(7, ASSIGNMENT, None, metadata),
    ]


def test_a_list_proposes_every_selection_once_in_an_order_of_the_seed(space: BranchSpace) -> None:
    async def in_batches(seed: int) -> list[Proposal]:
        proposer = EnumeratedProposer(space, seed=seed)
        proposals = [*await proposer.propose(1), *await proposer.propose(3)]
        await proposer.observe([(proposal, None) for proposal in proposals])
        assert (proposer.stats.asks, proposer.stats.suggestions) == (2, 4)
        assert proposer.stats.suggest_seconds == 0.0
        return proposals

    orders = set()
    for seed in range(8):
        proposals = asyncio.run(in_batches(seed))
        assert [proposal.number for proposal in proposals] == [0, 1, 2, 3]
        assert all(p.assignment == {} and p.projection is None for p in proposals)
        order = tuple(str(proposal.selection) for proposal in proposals)
        assert set(order) == {str(space.selection(index)) for index in range(4)}
        assert asyncio.run(in_batches(seed)) == proposals
        orders.add(order)
    assert len(orders) > 1


def test_an_endless_branch_has_no_list(
    make_config: Callable[..., SmartSearchConfig], make_space: Callable[..., BranchSpace]
) -> None:
    lengths = {"isl": 1000, "osl": 100, "num_request_ratio": 2.0}
    endless = make_space(make_config(workload=lengths, goal={"target": "pareto"}))
    with pytest.raises(ValueError, match="no end of selections"):
        EnumeratedProposer(endless, seed=1)
