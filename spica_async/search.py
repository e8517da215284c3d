"""Drives the branches of a sweep side by side, until every one of them has ended."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from schemas.messages import TraceLoad
from spica_async.branch_search import BranchSearch, Observer, stagnation
from spica_async.evaluations import Evaluations
from spica_async.plan.types import SweepPlan
from spica_async.proposals import Proposer
from spica_async.sample import (
    SampleContext,
)
from spica_async.scoring import Candidate
from spica_async.space.branch import BranchSpace

ProposerFactory = Callable[[BranchSpace], AbstractAsyncContextManager[Proposer]]
"""Opens the source of one branch's proposals."""


class Search:
    """All branches of one sweep, run side by side.

    Args:
        sweep_id: its name, and its evaluations' prefix.
        plan: what to search.
        trace: the trace of the workload, if it is one.
        evaluations: of the sweep.
        observer: hears of what happens.
        elapsed: the seconds since the sweep began.

    Attributes:
        branches: one for each of the plan.
        converged: whether branches were ended because all together no longer got better.
    """

    def __init__(
        self,
        *,
        sweep_id: str,
        plan: SweepPlan,
        trace: TraceLoad | None,
        evaluations: Evaluations,
        observer: Observer,
        elapsed: Callable[[], float],
    ) -> None:
        context = sample_context(plan)
        self._sweep = plan.config.sweep
        self._slots = 0
        self._stagnation = stagnation(plan.config)
        self.converged = False
        self.branches = tuple(
            BranchSearch(
                sweep_id=sweep_id,
                config=plan.config,
                context=context,
                trace=trace,
                space=space,
                evaluations=evaluations,
                observer=observer,
                elapsed=elapsed,
                on_told=self._weigh,
            )
            for space in plan.branches
        )

    @property
    def candidates(self) -> list[Candidate]:
        """What all branches have measured so far."""
        return [candidate for branch in self.branches for candidate in branch.candidates]

    async def run(self, open_proposer: ProposerFactory) -> None:
        """Run every branch to its end; what was found is there whenever this is cancelled."""

        async def run_branch(branch: BranchSearch) -> None:
            async with open_proposer(branch.space) as proposer:
                await branch.run(proposer)
            self._share_slots()

        self._share_slots()
        async with asyncio.TaskGroup() as group:
            for branch in self.branches:
                group.create_task(run_branch(branch))

    def stop(self) -> frozenset[asyncio.Task[None]]:
        """Propose nothing more; `run` goes on taking results, and has to be cancelled in the end.

        Returns:
            The evaluations under way; each ends with its result, or when it is given up.
        """
        return frozenset(task for branch in self.branches for task in branch.stop())

    def suit(self, slots: int) -> None:
        """Keep as much in flight as the workers can evaluate at once.

        What only waits for a slot is chosen without the results that come in meanwhile.

        Args:
            slots: of all workers that are known; with 0 everything is kept in flight that may be.
        """
        if slots != self._slots:
            self._slots = slots
            self._share_slots()

    def _share_slots(self) -> None:
        """Give each branch that runs its part of what may be in flight."""
        most = self._sweep.parallel_evals
        parallel = min(most, self._slots) if self._slots else most
        running = [branch for branch in self.branches if not branch.state.finished]
        for branch in running:
            branch.keep_in_flight(math.ceil(parallel / len(running)))

    def _weigh(self, candidate: Candidate) -> None:
        self._stagnation.add(candidate)
        running = [branch for branch in self.branches if not branch.state.finished]
        if self._stagnation.lost and running and not self.converged:
            self.converged = True
            for branch in running:
                branch.conclude()


def sample_context(plan: SweepPlan) -> SampleContext:
    """What every sample of the sweep has in common."""
    config = plan.config
    return SampleContext(
        space=config.search_space,
        is_moe=plan.model.is_moe,
        longest_sequence=plan.longest_sequence,
        capacity=plan.capacity,
        predictors=plan.predictors.best_by_interval,
        planner_target=config.goal.target.planner_optimization_target,
        isl=config.workload.isl or 0,
        osl=config.workload.osl or 0,
        facts={"needs_wide_ep": plan.needs_wide_ep},
    )
