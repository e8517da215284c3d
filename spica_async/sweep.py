"""One sweep from its plan to its result, over a bus that somebody else's workers listen to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from schemas.goal import OptimizationTarget
from schemas.messages import TraceLoad
from schemas.results import CandidateRecord, SweepResult, SweepTimings
from spica_async.branch_search import BranchSearch, Observer
from spica_async.bus.port import Bus, BusError
from spica_async.errors import SpicaError, first_cause
from spica_async.evaluations import Discarded, Evaluations
from spica_async.fleet import FleetView
from spica_async.judging import study_objectives
from spica_async.outcome import (
    CutShort,
    branch_result,
    is_useful,
    ranked,
    sum_tallies,
    sweep_reason,
    sweep_status,
)
from spica_async.plan.budget import enumerable_points
from spica_async.plan.types import SweepPlan
from spica_async.proposals import EnumeratedProposer, Proposer, StudyProposer
from spica_async.results import ResultsFolder
from spica_async.sampling.profiles import open_sampler
from spica_async.sampling.types import Study
from spica_async.scoring import pareto_front, rank
from spica_async.search import Search
from spica_async.space.branch import BranchSpace

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Sweep:
    """One sweep and where everything of it goes.

    Attributes:
        sweep_id: its name, and its evaluations' prefix.
        plan: what to search.
        trace: the trace of the workload, if it is one.
        folder: takes everything that is found.
        display: hears of everything after the folder has it.
        versions: of the engine that the workers run.
        fingerprint: of the same, by which requests find their workers.
        planning_seconds: what the plan took.
        spent_seconds: from the start of everything until `run`, the planning included.
        grace_seconds: after a stop, for evaluations that run to bring their result.
    """

    sweep_id: str
    plan: SweepPlan
    trace: TraceLoad | None
    folder: ResultsFolder
    display: Observer
    versions: dict[str, str]
    fingerprint: str
    planning_seconds: float
    spent_seconds: float
    grace_seconds: float = 0.0

    async def run(self, bus: Bus, stop: asyncio.Event) -> SweepResult:
        """Search until every branch has ended, `stop` is set or `max_seconds` are up.

        However this ends, what was found until then is written. After a stop nothing new is sent
        out, and what runs is waited for as long as the grace allows; to cancel this is to stop
        without a grace.

        Raises:
            SpicaError: if the bus failed, or the results cannot be written.
        """
        try:
            return await self._run(bus, stop)
        except* (BusError, SpicaError) as failures:
            failure = first_cause(failures)
        if isinstance(failure, SpicaError):
            raise failure
        raise SpicaError(
            f"{failure}; what was found, if anything, is in {self.folder.path}"
        ) from failure

    async def _run(self, bus: Bus, stop: asyncio.Event) -> SweepResult:
        time = asyncio.get_running_loop().time
        began = time()

        def elapsed() -> float:
            return self.spent_seconds + time() - began

        recorder = _Recorder(self.folder, self.display)
        search: Search | None = None
        slots = 0

        def on_fleet(view: FleetView) -> None:
            nonlocal slots
            slots = view.slots
            recorder.fleet(view)
            if search is not None:
                search.suit(slots)

        async with Evaluations.open(
            bus,
            coordinator=self.sweep_id,
            fingerprint=self.fingerprint,
            parallel=self.plan.config.sweep.parallel_evals,
            versions=self.versions,
            on_fleet=on_fleet,
        ) as evaluations:
            search = Search(
                sweep_id=self.sweep_id,
                plan=self.plan,
                trace=self.trace,
                evaluations=evaluations,
                observer=recorder,
                elapsed=elapsed,
            )
            search.suit(slots)  # Workers may have been heard of already.
            cut_short: CutShort | None = "interrupted"
            try:
                limit = self.plan.config.sweep.max_seconds
                left = None if limit is None else max(0.0, limit - elapsed())
                cut_short = await self._run_until(stop, left, search, evaluations)
            finally:
                result = self._result(
                    search,
                    cut_short=cut_short,
                    evaluations=evaluations,
                    search_seconds=time() - began,
                    total_seconds=elapsed(),
                )
                self.folder.write_result(result, pareto=self._is_pareto)
        return result

    async def _run_until(
        self,
        stop: asyncio.Event,
        seconds: float | None,
        search: Search,
        evaluations: Evaluations,
    ) -> CutShort | None:
        """Run the search; end it once `stop` is set or so many seconds are up.

        Returns:
            What left some of it undone, if anything did.
        """
        async with asyncio.TaskGroup() as group:
            searching = group.create_task(search.run(self._open_proposer))
            stopping = group.create_task(stop.wait())
            ended, _ = await asyncio.wait(
                {searching, stopping}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not searching.done() and self.grace_seconds > 0:
                await self._wind_down(search, evaluations)
            searching.cancel()
            stopping.cancel()
        if all(branch.state.finished for branch in search.branches):
            return None
        return "interrupted" if ended else "time_limit"

    async def _wind_down(self, search: Search, evaluations: Evaluations) -> None:
        try:
            async with asyncio.timeout(self.grace_seconds):
                evaluating = search.stop()
                await evaluations.cancel(self.grace_seconds)
                if evaluating:
                    await asyncio.wait(evaluating)
        except TimeoutError:
            log.info("coordinator.grace_ended", seconds=self.grace_seconds)
        except BusError as error:
            log.warning("coordinator.cancelled_unheard", error=str(error))

    @property
    def _is_pareto(self) -> bool:
        return self.plan.config.goal.target is OptimizationTarget.PARETO

    @asynccontextmanager
    async def _open_proposer(self, space: BranchSpace) -> AsyncIterator[Proposer]:
        config = self.plan.config
        if enumerable_points(config, space) is not None:
            yield EnumeratedProposer(space, seed=config.sweep.random_seed)
            return
        study = Study(
            branch=space.mode,
            seed=config.sweep.random_seed,
            parameters=space.parameters,
            objectives=study_objectives(config.goal),
        )
        async with open_sampler(
            study,
            config.sweep.optimizer,
            suggest_timeout_seconds=config.sweep.suggest_timeout_seconds,
            log_path=self.folder.logs / f"sampler-{space.mode}.log",
        ) as sampler:
            yield StudyProposer(
                space,
                sampler,
                seeds=self.plan.seeds.get(space.mode, ()),
                finds_neighbours=config.sweep.optimizer.profile == "fast",
                seed=config.sweep.random_seed,
            )

    def _result(
        self,
        search: Search,
        *,
        cut_short: CutShort | None,
        evaluations: Evaluations,
        search_seconds: float,
        total_seconds: float,
    ) -> SweepResult:
        goal = self.plan.config.goal
        found = search.candidates
        ordered = pareto_front(found, goal.objectives) if self._is_pareto else rank(found)
        branches = [branch_result(branch, cut_short) for branch in search.branches]
        status = sweep_status(
            [branch.end for branch in branches],
            interrupted=cut_short == "interrupted",
            useful=any(is_useful(candidate.objectives, goal) for candidate in found),
        )
        samplers = [branch.stats for branch in search.branches]
        tally = sum_tallies(branch.tally for branch in branches)
        return SweepResult(
            sweep_id=self.sweep_id,
            status=status,
            reason=sweep_reason(
                branches,
                self.plan.config.sweep,
                cut_short,
                converged=search.converged and status == "converged",
            ),
            ranking=[ranked(candidate) for candidate in ordered],
            tally=tally.model_copy(
                update={
                    "late_results": evaluations.discarded[Discarded.LATE],
                    "resent_requests": evaluations.resent,
                }
            ),
            timings=SweepTimings(
                total=total_seconds,
                planning=self.planning_seconds,
                search=search_seconds,
                optimizer=sum(branch.optimizer_seconds for branch in branches),
                compiling=sum(stats.compile_seconds for stats in samplers),
                compile_waits=sum(stats.compile_wait_seconds for stats in samplers),
                optimizer_starts=sum(stats.start_seconds for stats in samplers),
                evaluations=sum(branch.evaluation_seconds for branch in branches),
            ),
            branches=branches,
            results_dir=str(self.folder.path),
            seed=self.plan.config.sweep.random_seed,
            versions=self.versions,
        )


class _Recorder:
    """An observer that writes before it shows."""

    def __init__(self, folder: ResultsFolder, display: Observer) -> None:
        self._folder = folder
        self._display = display

    def evaluated(self, record: CandidateRecord) -> None:
        self._folder.append(record)
        self._display.evaluated(record)

    def progressed(self, branch: BranchSearch) -> None:
        self._display.progressed(branch)

    def fleet(self, view: FleetView) -> None:
        self._display.fleet(view)
