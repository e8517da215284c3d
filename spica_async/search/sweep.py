"""One sweep from its plan to its result, over a bus that somebody else's workers listen to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from schemas.goal import OptimizationTarget
from schemas.journal import Ended, Started, Stopped, SweepFact
from schemas.messages import TraceLoad
from schemas.results import CandidateRecord, RankedCandidate, SweepResult, SweepTimings
from spica_async.bus.port import Bus, BusError, BusUnavailableError
from spica_async.errors import BusAwayError, SpicaError, causes, first_cause
from spica_async.evaluate import Discarded, Earlier, Evaluations, Fleet, Share
from spica_async.evaluate.fleet import FleetView
from spica_async.evaluate.reuse import Reuse
from spica_async.judge.scoring import pareto_front, rank
from spica_async.judge.sweep_result import (
    CutShort,
    branch_result,
    is_useful,
    ranked,
    sum_tallies,
    sweep_reason,
    sweep_status,
)
from spica_async.judge.verdict import study_objectives
from spica_async.optimizer.profiles import open_sampler
from spica_async.optimizer.proposals import EnumeratedProposer, Proposer, StudyProposer
from spica_async.optimizer.types import Study
from spica_async.plan.budget import enumerable_points
from spica_async.plan.types import SweepPlan
from spica_async.processes.garbage import not_collected
from spica_async.processes.shielded import shielded
from spica_async.report.folder_writer import FolderWriter
from spica_async.search.branch import Branch
from spica_async.search.branches import Branches, Observer
from spica_async.search.events.pending import PendingEvents
from spica_async.search.fact_log import FactLog
from spica_async.search.past_runs import MEMORY_BUS, PastRuns
from spica_async.search.stopping import SweepStop
from spica_async.space.branch import BranchSpace

_KEPT_RANKS: Final = 100
"""Of the ranking or the front, in the journal."""

_LAST_SECONDS: Final = 5.0
"""For the end of a run that is to end at once."""

log = structlog.get_logger(__name__)


class Viewer(Observer, Protocol):
    """Hears of what happens in a sweep, and of what happened in its earlier runs."""

    def restored(self, record: CandidateRecord) -> None:
        """A unique sample has had its verdict since before this run."""


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
        log: takes its facts.
        past: what earlier runs have come to.
        owner: who runs it, as its log says.
        bus_name: of the bus that it is run over.
        share: of the slots that several sweeps have; none: they are this one's alone.
        events: tells others of it; none: nobody asks.
        reuse: answers what was measured before; none: nothing does.
    """

    sweep_id: str
    plan: SweepPlan
    trace: TraceLoad | None
    folder: FolderWriter
    display: Viewer
    versions: dict[str, str]
    fingerprint: str
    planning_seconds: float
    log: FactLog
    past: PastRuns = field(default_factory=PastRuns)
    owner: str = ""
    bus_name: str = MEMORY_BUS
    share: Share | None = None
    events: PendingEvents | None = None
    reuse: Reuse | None = None

    async def ended(self, end: Ended) -> SweepResult:
        """The result of a sweep that has ended, written once more.

        Raises:
            SpicaError: what the journal has does not go with the plan, or cannot be written.
        """
        search = await self.restored()
        result = end.result.model_copy(update={"ranking": self._ranking(search)})
        self.folder.write_result(result, pareto=self.is_pareto)
        await self.folder.settled()
        return result

    async def restored(self) -> Branches:
        """The search where its earlier runs have left it, for whoever only looks.

        Raises:
            SpicaError: what the journal has does not go with the plan, or cannot be written.
        """
        recorder = _Recorder(self.folder, self.events)
        search = await self._search(recorder, lambda: self.past.elapsed_seconds)
        self.folder.show_candidates()
        await self.folder.settled()
        return search

    async def run(
        self,
        bus: Bus,
        stop: SweepStop,
        *,
        companion: AbstractAsyncContextManager[None] | None = None,
        spent_seconds: float = 0.0,
    ) -> SweepResult:
        """Search until every branch has ended, a stop is requested or `max_seconds` are up.

        However this ends, what was found until then is written. After a stop nothing new is sent
        out, and what runs is waited for as long as the grace allows; to cancel this is to stop
        without a grace. Unless a branch or the time limit has ended it, it can be resumed.

        Args:
            bus: that workers listen to.
            stop: ends it.
            companion: is open while it is searched. What it raises has ended the sweep, too, so
                that the journal has the cause, and not only that the search was cancelled.
            spent_seconds: that the sweep has run for until now, the planning included.

        Raises:
            BusAwayError: if the bus was away for longer than it is patient.
            SpicaError: if the bus or the journal failed, or the results cannot be written.
        """
        try:
            return await self._run(bus, stop, companion or nullcontext(), spent_seconds)
        except* (BusError, SpicaError) as failures:
            failure = first_cause(failures)
        if isinstance(failure, SpicaError):
            raise failure
        kind = BusAwayError if isinstance(failure, BusUnavailableError) else SpicaError
        raise kind(f"{failure}; what was found, if anything, is in {self.folder.path}") from failure

    async def _run(
        self,
        bus: Bus,
        stop: SweepStop,
        companion: AbstractAsyncContextManager[None],
        spent_seconds: float,
    ) -> SweepResult:
        time = asyncio.get_running_loop().time
        began = time()

        def elapsed() -> float:
            return spent_seconds + time() - began

        recorder = _Recorder(self.folder, self.events)
        recorder.display = self.display
        search = await self._search(recorder, elapsed)
        recorder.is_restoring = False
        self.folder.show_candidates()
        for branch in search.branches:
            recorder.progressed(branch)
        run = self.past.runs + 1
        started = Started(at=elapsed(), run=run, owner=self.owner, bus=self.bus_name)
        return await _Run(self, search, stop, elapsed).conduct(
            started,
            Evaluations(
                bus,
                Fleet(self.fingerprint, self.versions),
                coordinator=self.sweep_id,
                parallel=self.plan.config.sweep.parallel_evals,
                on_fleet=self._on_fleet(search, recorder),
                earlier=Earlier(run, search.requested, search.measured),
                share=self.share,
            ).open(),
            companion,
        )

    def _on_fleet(self, search: Branches, recorder: _Recorder) -> Callable[[FleetView], None]:
        """What hears of the workers; the search keeps in flight what suits them and our share."""
        slots = 0

        def suit() -> None:
            search.suit(min(slots, self.share.slots) if self.share is not None else slots)

        def on_fleet(view: FleetView) -> None:
            nonlocal slots
            slots = view.slots
            recorder.fleet(view)
            suit()

        if self.share is not None:
            self.share.on_change = suit
        return on_fleet

    async def _search(self, recorder: _Recorder, elapsed: Callable[[], float]) -> Branches:
        """The search as earlier runs have left it."""
        search = Branches(
            sweep_id=self.sweep_id,
            plan=self.plan,
            trace=self.trace,
            log=self.log,
            observer=recorder,
            elapsed=elapsed,
            reuse=self.reuse,
            bus=self.bus_name,
        )
        with not_collected():
            await search.restore(self._past_facts())
        return search

    def _past_facts(self) -> Iterator[SweepFact]:
        for fact in self.past.facts:
            if self.events is not None:
                self.events.fact(fact)
            yield fact

    @property
    def is_pareto(self) -> bool:
        """Whether there is a front in place of a ranking."""
        return self.plan.config.goal.target is OptimizationTarget.PARETO

    @asynccontextmanager
    async def open_proposer(self, space: BranchSpace) -> AsyncIterator[Proposer]:
        """The source of a branch's proposals, while the context is open."""
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

    def _ranking(self, search: Branches) -> list[RankedCandidate]:
        found = search.candidates
        objectives = self.plan.config.goal.objectives
        ordered = pareto_front(found, objectives) if self.is_pareto else rank(found)
        return [ranked(candidate) for candidate in ordered]

    def result(
        self,
        search: Branches,
        *,
        cut_short: CutShort | None,
        evaluations: Evaluations | None,
        search_seconds: float,
        total_seconds: float,
    ) -> SweepResult:
        """What a run has come to.

        Args:
            search: as it is left.
            cut_short: what has left some of it undone, if anything has.
            evaluations: of the run, if it came to any.
            search_seconds: that were spent on searching, by earlier runs as well.
            total_seconds: that the sweep has run for.
        """
        goal = self.plan.config.goal
        branches = [branch_result(branch, cut_short) for branch in search.branches]
        status = sweep_status(
            [branch.end for branch in branches],
            interrupted=cut_short == "interrupted",
            useful=any(is_useful(candidate.objectives, goal) for candidate in search.candidates),
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
            ranking=self._ranking(search),
            tally=tally.model_copy(
                update={
                    "late_results": evaluations.discarded[Discarded.LATE] if evaluations else 0,
                    "resent_requests": evaluations.resent if evaluations else 0,
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


class _Run:
    """One run of a sweep, from the writing down of its start to that of its end.

    Args:
        sweep: whose it is.
        search: as earlier runs have left it.
        stop: ends it.
        elapsed: the seconds that the sweep has run for.
    """

    def __init__(
        self, sweep: Sweep, search: Branches, stop: SweepStop, elapsed: Callable[[], float]
    ) -> None:
        self._sweep = sweep
        self._search = search
        self._stop = stop
        self._elapsed = elapsed
        self._began = elapsed()
        self._evaluations: Evaluations | None = None
        self._is_ending = False

    async def conduct(
        self,
        started: Started,
        opening: AbstractAsyncContextManager[Evaluations],
        companion: AbstractAsyncContextManager[None],
    ) -> SweepResult:
        """Search until it ends or is told to; however that is, it is written down."""
        try:
            await self._sweep.log.record(started, lambda: None, status="running")
            async with companion, opening as evaluations:
                self._evaluations = evaluations
                # Unless it is written that we have left, whoever goes on with the sweep takes over
                # what is under way, or has done so already.
                evaluations.announces_leaving = False
                self._stop.ready()
                try:
                    cut_short = await self._search_on(evaluations)
                except asyncio.CancelledError:
                    if self._stop.requested.is_set():
                        await self._end_at_once()
                    raise
                return await shielded(self._end(cut_short), patience_seconds=_LAST_SECONDS)
        except asyncio.CancelledError as error:
            if not self._is_ending:
                await self._end_at_once(None if self._stop.requested.is_set() else error)
            raise
        except Exception as error:
            # Only out here it shows what has broken off the search.
            if not self._is_ending:
                await self._end("interrupted", causes(error)[0])
            raise

    async def _end_at_once(self, failure: BaseException | None = None) -> None:
        """End as far as that goes without waiting for long."""
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self._end("interrupted", failure)
        except TimeoutError:
            log.warning("sweep.end_unwritten", seconds=_LAST_SECONDS)

    async def _end(self, cut_short: CutShort, failure: BaseException | None = None) -> SweepResult:
        self._is_ending = True
        # What was measured while the journal was busy counts, too.
        await self._sweep.log.settled()
        result = self._sweep.result(
            self._search,
            cut_short=None if self._search.is_over else cut_short,
            evaluations=self._evaluations,
            search_seconds=self._sweep.past.search_seconds + self._elapsed() - self._began,
            total_seconds=self._elapsed(),
        )
        await self._log_end(result, failure, self._elapsed())
        if self._evaluations is not None:
            self._evaluations.announces_leaving = failure is None
        self._sweep.folder.write_result(result, pareto=self._sweep.is_pareto)
        await self._sweep.folder.settled()
        return result

    async def _log_end(self, result: SweepResult, failure: BaseException | None, at: float) -> None:
        """Write down that the sweep has ended, or that this run of it has."""
        kept = result.model_copy(update={"ranking": result.ranking[:_KEPT_RANKS]})
        if failure is None and result.status != "interrupted":
            await self._sweep.log.record(
                Ended(at=at, result=kept), lambda: None, status=result.status
            )
            return
        waits = self._stop.requeues and isinstance(failure, BusUnavailableError)
        failed = failure is not None and not waits
        status = "queued" if waits else "failed" if failed else self._stop.status
        why = result.reason if failure is None else _why(failure)
        stopped = Stopped(
            at=at,
            reason=why,
            failed=failed,
            cancelled=status == "cancelled",
            queued=status == "queued",
            result=kept,
        )
        await self._sweep.log.record(stopped, lambda: None, status=status)

    async def _search_on(self, evaluations: Evaluations) -> CutShort:
        """Run the search; end it once it is told to stop, or its time is up.

        Returns:
            What has left some of it undone, unless all is done by then.
        """
        limit = self._sweep.plan.config.sweep.max_seconds
        left = None if limit is None else max(0.0, limit - self._elapsed())
        async with asyncio.TaskGroup() as group:
            searching = group.create_task(self._search.run(self._sweep.open_proposer, evaluations))
            stopping = group.create_task(self._stop.requested.wait())
            ended, _ = await asyncio.wait(
                {searching, stopping}, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            if not searching.done() and self._stop.grace_seconds > 0:
                await self._wind_down(evaluations)
            searching.cancel()
            stopping.cancel()
        return "interrupted" if ended else "time_limit"

    async def _wind_down(self, evaluations: Evaluations) -> None:
        try:
            async with asyncio.timeout(self._stop.grace_seconds):
                evaluating = self._search.stop()
                await evaluations.cancel(self._stop.grace_seconds)
                if evaluating:
                    await asyncio.wait(evaluating)
        except TimeoutError:
            log.info("coordinator.grace_ended", seconds=self._stop.grace_seconds)
        except BusError as error:
            log.warning("coordinator.cancelled_unheard", error=str(error))


def _why(failure: BaseException) -> str:
    """What others are told of the end of a sweep that something has broken off."""
    if isinstance(failure, asyncio.CancelledError):
        return "it broke off"
    if isinstance(failure, SpicaError | BusError):
        return str(failure)
    return f"unexpected {type(failure).__name__}: {failure}"


class _Recorder:
    """An observer that has all written, and shows it meanwhile.

    Attributes:
        display: what shows, if anything does.
        is_restoring: whether this is what earlier runs have found.
    """

    def __init__(self, folder: FolderWriter, events: PendingEvents | None) -> None:
        self._folder = folder
        self._events = events
        self.display: Viewer | None = None
        self.is_restoring = True

    def evaluated(self, record: CandidateRecord) -> None:
        self._folder.append(record)
        # Of what a worker has sent the log tells by itself, together with the fact.
        was_sent_out = record.timings is not None
        if self._events is not None and (self.is_restoring or not was_sent_out):
            self._events.evaluated(record)
        if self.display is None:
            return
        if self.is_restoring:
            self.display.restored(record)
        else:
            self.display.evaluated(record)

    def progressed(self, branch: Branch) -> None:
        if self.display is not None:
            self.display.progressed(branch)

    def fleet(self, view: FleetView) -> None:
        if self.display is not None:
            self.display.fleet(view)
