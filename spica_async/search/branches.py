"""Drives the branches of a sweep side by side, until every one of them has ended."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

from schemas.journal import (
    BranchFact,
    Concluded,
    Confirmed,
    Ended,
    Planned,
    Started,
    Stopped,
    SweepFact,
)
from spica_async.errors import SpicaError
from spica_async.evaluate.in_flight import Evaluations
from spica_async.judge.scoring import Candidate
from spica_async.optimizer.proposals import Proposer
from spica_async.plan.types import SweepPlan, enumerable_points
from spica_async.search.baseline import Baseline
from spica_async.search.branch import Branch, patience
from spica_async.search.branch_driver import BranchDriver, SearchContext
from spica_async.search.branch_resume import BranchRestorer
from spica_async.search.confirmation import Confirmation
from spica_async.search.confirmation_driver import ConfirmationDriver
from spica_async.search.observer import Observer
from spica_async.search.past_runs import requests_survive
from spica_async.search.racing import Race
from spica_async.space.branch import BranchSpace
from spica_async.space.sample import SampleContext

_FACTS_AT_ONCE: Final = 50
"""Some milliseconds' worth."""

ProposerFactory = Callable[[BranchSpace], AbstractAsyncContextManager[Proposer]]
"""Opens the source of one branch's proposals."""


class Branches:
    """All branches of one sweep, run side by side.

    Args:
        context: what they are searched with.
        observer: called at each step.

    Attributes:
        branches: one for each of the plan.
        baseline: what the candidates are held against; none: nothing.
        confirmation: says what is measured again once all branches have ended.
        converged: whether branches were ended because all together no longer got better.
    """

    def __init__(self, context: SearchContext, observer: Observer) -> None:
        sweep, plan = context.sweep, context.sweep.plan
        samples = sample_context(plan)
        self._parallel_evals = plan.config.sweep.parallel_evals
        self._slots = 0
        self._patience = patience(plan.config)
        self._bus = context.bus
        self._confirmed = plan.config.confirm.top if sweep.replicates else 0
        self._race = Race(plan.config.goal, replays=_search_replays(plan) * sweep.replicates)
        self.confirmation = Confirmation(plan.config, enabled=sweep.replicates)
        self.converged = False
        self.branches = tuple(
            Branch(
                sweep_id=sweep.sweep_id,
                config=plan.config,
                context=samples,
                space=space,
                on_evaluated=observer.evaluated,
                shared_patience=self._patience,
                race=self._race,
            )
            for space in plan.branches
        )
        self._restorers: dict[str, BranchRestorer] = {
            branch.space.mode: BranchRestorer(branch) for branch in self.branches
        }
        self._drivers = tuple(
            BranchDriver(
                branch,
                context,
                progressed=partial(observer.progressed, branch),
                after_observed=self._conclude_if_lost,
            )
            for branch in self.branches
        )
        self.baseline = (
            None
            if plan.baseline is None
            else Baseline(sweep.sweep_id, plan.config, samples, plan.baseline)
        )
        self._confirming = ConfirmationDriver(
            self.confirmation,
            self.branches,
            context,
            observer=observer,
            baseline=self.baseline,
        )

    @property
    def candidates(self) -> list[Candidate]:
        """What all branches have measured so far."""
        return [candidate for branch in self.branches for candidate in branch.candidates]

    @property
    def baseline_candidate(self) -> Candidate | None:
        """The baseline as a candidate, once it is measured."""
        return None if self.baseline is None else self.baseline.candidate

    @property
    def is_over(self) -> bool:
        """Whether every branch has come to its end, and the best are confirmed."""
        return not self._running and self._confirming.is_over()

    @property
    def confirmed(self) -> int:
        """How many of the best are known from as many replays as was to be."""
        return self._confirmed if self.is_over else 0

    @property
    def requested(self) -> list[str]:
        """Evaluations whose requests an earlier run has sent, and that may be under way still."""
        searched = [
            evaluation.request_id
            for branch in self.branches
            for evaluation in branch.open.values()
            if evaluation.requested
        ]
        return searched + list(self._confirming.requested)

    @property
    def measured(self) -> list[str]:
        """Evaluations that have their result."""
        known: Sequence[Branch | Baseline] = self.branches
        if self.baseline is not None:
            known = [*known, self.baseline]
        return [evaluation_id for one in known for evaluation_id in one.measured_ids]

    async def restore(self, facts: Iterable[SweepFact]) -> None:
        """Take in what earlier runs have come to, before `run`; others have their turn meanwhile.

        Args:
            facts: the facts of the sweep, in order.

        Raises:
            SpicaError: a fact does not go with the plan, or with those before it.
        """
        last_bus = self._bus
        for number, fact in enumerate(facts):
            if number % _FACTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            match fact:
                case Planned() | Confirmed() | Stopped() | Ended():
                    pass  # Not about what is measured next.
                case Started():
                    self._change_bus(last_bus, fact.bus)
                    last_bus = fact.bus
                case _:
                    self._restore_branch(fact)
        self._change_bus(last_bus, self._bus)

    def _restore_branch(self, fact: BranchFact) -> None:
        if self._confirming.restores(fact):
            return
        restorer = self._restorers.get(fact.branch)
        if restorer is None:
            raise SpicaError(f"the journal has facts of a branch {fact.branch}, and there is none")
        restorer.apply(fact)
        if isinstance(fact, Concluded) and fact.by == "sweep":
            self.converged = True

    def _change_bus(self, last: str, this: str) -> None:
        if not requests_survive(last, this):
            self._confirming.requested.clear()
            for restorer in self._restorers.values():
                restorer.give_up_requests()

    async def run(self, open_proposer: ProposerFactory, evaluations: Evaluations) -> None:
        """Run every branch to its end; what was found is there whenever this is cancelled."""

        async def run_branch(driver: BranchDriver) -> None:
            space = driver.branch.space
            catch_up = self._restorers.pop(space.mode).catch_up()
            if not driver.branch.state.finished or catch_up.unobserved:
                async with open_proposer(space) as proposer:
                    await driver.run(proposer, evaluations, catch_up)
            self._share_slots()

        self._share_slots()
        async with asyncio.TaskGroup() as group:
            self._confirming.start_baseline(group, evaluations)
            for driver in self._drivers:
                group.create_task(run_branch(driver))
        if not self._running:
            await self._confirming.run(evaluations)

    def stop(self) -> frozenset[asyncio.Task[None]]:
        """Propose and confirm nothing more. `run` goes on taking results until it is cancelled.

        Returns:
            The evaluations under way; each ends with its result, or when it is given up.
        """
        searching = frozenset(task for driver in self._drivers for task in driver.stop())
        return searching | self._confirming.stop()

    def suit(self, slots: int) -> None:
        """Keep as many samples in flight as the workers can evaluate at once.

        What only waits for a slot is chosen without the results that come in meanwhile.

        Args:
            slots: the slots of all known workers; with 0 everything is kept in flight that may be.
        """
        if slots != self._slots:
            self._slots = slots
            self._share_slots()

    def _share_slots(self) -> None:
        """Give each branch that runs its part of what may be in flight."""
        most = self._parallel_evals
        parallel = min(most, self._slots) if self._slots else most
        running = self._running
        for driver in running:
            driver.keep_in_flight(math.ceil(parallel / len(running)))

    async def _conclude_if_lost(self) -> None:
        """End all branches once the candidates of all together have lost the patience."""
        if not self._patience.lost:
            return
        for driver in self._running:
            if not driver.branch.state.concluded:
                self.converged = True
                await driver.conclude("sweep")

    @property
    def _running(self) -> list[BranchDriver]:
        return [driver for driver in self._drivers if not driver.branch.state.finished]


def _search_replays(plan: SweepPlan) -> int:
    """How often candidates may be measured again during the search, over all branches."""
    sweep = plan.config.sweep
    budget = sum(
        enumerable_points(plan.config, space) or sweep.max_rounds * sweep.per_round
        for space in plan.branches
    )
    return int(budget * plan.config.confirm.search_share)


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
        backend_versions=plan.backend_versions,
        facts={"needs_wide_ep": plan.needs_wide_ep},
    )
