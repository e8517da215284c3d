"""One run of a sweep: from what earlier runs have found to a result that is written down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Final

import structlog

from schemas.journal import Ended, Started, Stopped, SweepFact
from schemas.results import SweepResult
from spica_async.bus.port import Bus, BusError, BusUnavailableError
from spica_async.errors import SpicaError, causes, first_cause
from spica_async.evaluate.fleet import Fleet, FleetView
from spica_async.evaluate.in_flight import Earlier, Evaluations
from spica_async.evaluate.reuse import Reuse, no_reuse
from spica_async.evaluate.turns import Share
from spica_async.judge.ranking import ranking
from spica_async.judge.sweep_result import CutShort
from spica_async.processes.garbage import not_collected
from spica_async.processes.shielded import shielded
from spica_async.search.branch_driver import SearchContext
from spica_async.search.branches import Branches
from spica_async.search.fact_log import FactLog
from spica_async.search.observer import Observers
from spica_async.search.past_runs import MEMORY_BUS
from spica_async.search.result import sweep_result
from spica_async.search.stopping import SweepStop
from spica_async.search.sweep import Sweep
from spica_async.search.sweep_state import TRANSITIONS, RunState
from spica_async.states import moved

_KEPT_RANKS: Final = 100
"""Of the ranking or the front, in the journal."""

_AT_ITS_END: Final = frozenset({RunState.ENDING, RunState.ENDED})
LAST_SECONDS: Final = 5.0
"""For the end of a run that is to end at once."""

log = structlog.get_logger(__name__)


class SweepRun:
    """Runs one sweep once, or shows what its earlier runs have found.

    Args:
        sweep: the sweep to run.
        log: the log that facts are written to.
        observers: called at each step, in their order.
        stop: ends the run, and says what the sweep is then.
        reuse: answers what was measured before; none: nothing does.
        share: the sweep's share of the workers' slots; none: all slots are its own.
        owner: the name of this process in the journal.
        bus_name: the address of the broker that requests go out over.
    """

    def __init__(
        self,
        sweep: Sweep,
        log: FactLog,
        observers: Observers,
        *,
        stop: SweepStop,
        reuse: Reuse | None = None,
        share: Share | None = None,
        owner: str = "",
        bus_name: str = MEMORY_BUS,
    ) -> None:
        self.sweep = sweep
        self._log = log
        self._observers = observers
        self._stop = stop
        self._share = share
        self._owner = owner
        self._bus_name = bus_name
        self._state = RunState.RESTORING
        self._evaluations: Evaluations | None = None
        self._spent_seconds = sweep.past.elapsed_seconds
        self._began: float | None = None
        self._search_began = 0.0
        context = SearchContext(sweep, log, self._elapsed, reuse or no_reuse(), bus_name)
        self._branches = Branches(context, observers)

    async def show_end(self, end: Ended) -> SweepResult:
        """The result of a sweep that has ended, written once more.

        Raises:
            SpicaError: what the journal has does not go with the plan, or cannot be written.
        """
        branches = await self.restore()
        whole = ranking(
            branches.candidates,
            self.sweep.plan.config.goal,
            confirmed=branches.confirmed,
            baseline=branches.baseline_candidate,
        )
        result = end.result.model_copy(update={"ranking": whole})
        self._observers.ended(result, pareto=self.sweep.plan.config.goal.is_pareto)
        await self._observers.settled()
        return result

    async def restore(self) -> Branches:
        """The branches where earlier runs have left them.

        Raises:
            SpicaError: what the journal has does not go with the plan, or cannot be written.
        """
        with not_collected():
            await self._branches.restore(self._past_facts())
        self._observers.resumed()
        return self._branches

    async def run(
        self,
        bus: Bus,
        *,
        companion: AbstractAsyncContextManager[None] | None = None,
        spent_seconds: float = 0.0,
    ) -> SweepResult:
        """Search until every branch has ended, a stop is requested or `max_seconds` are up.

        However this ends, what was found until then is written. After a stop nothing new is sent
        out, and what runs is waited for as long as the grace allows; to cancel this is to stop
        without a grace. Unless a branch or the time limit has ended it, it can be resumed.

        Args:
            bus: the bus that workers listen to.
            companion: is open during the search. What it raises has ended the sweep, too, so that
                the journal has the cause, and not only that the search was cancelled.
            spent_seconds: seconds that the sweep has run for until now, the planning included.

        Raises:
            BusUnavailableError: the bus was away for longer than it is patient.
            SpicaError: the bus or the journal failed, or the results cannot be written.
        """
        self._began = asyncio.get_running_loop().time()
        self._spent_seconds = spent_seconds
        try:
            await self.restore()
            for branch in self._branches.branches:
                self._observers.progressed(branch)
            if (baseline := self._branches.baseline) is not None and baseline.is_known:
                self._observers.baseline(baseline)
            return await self._conduct(bus, companion or nullcontext())
        except* SpicaError as failures:
            failure = first_cause(failures)
        if not isinstance(failure, BusError):
            raise failure
        where = f"what was found, if anything, is in {self.sweep.folder}"
        raise type(failure)(f"{failure}; {where}") from failure

    def _elapsed(self) -> float:
        """Seconds that the sweep has run for."""
        if self._began is None:
            return self._spent_seconds
        return self._spent_seconds + asyncio.get_running_loop().time() - self._began

    def _past_facts(self) -> Iterator[SweepFact]:
        for fact in self.sweep.past.facts:
            self._observers.restoring(fact)
            yield fact

    async def _conduct(self, bus: Bus, companion: AbstractAsyncContextManager[None]) -> SweepResult:
        """Search until it ends or is to stop; however that is, it is written down."""
        run = self.sweep.past.runs + 1
        self._search_began = self._elapsed()
        self._move(RunState.STARTING)
        try:
            started = Started(at=self._search_began, run=run, owner=self._owner, bus=self._bus_name)
            await self._log.record(started, lambda: None, status="running")
            async with companion, self._opening(bus, run) as evaluations:
                self._evaluations = evaluations
                # Unless it is written that we have left, the next run takes over what is under
                # way, or has done so already.
                evaluations.announces_leaving = False
                self._stop.ready()
                self._move(RunState.SEARCHING)
                try:
                    cut_short = await self._search(evaluations)
                except asyncio.CancelledError:
                    if self._stop.requested.is_set():
                        await self._end_at_once()
                    raise
                return await shielded(self._end(cut_short), patience_seconds=LAST_SECONDS)
        except asyncio.CancelledError as error:
            if self._state not in _AT_ITS_END:
                await self._end_at_once(None if self._stop.requested.is_set() else error)
            raise
        except Exception as error:
            # Only out here it shows what has broken off the search.
            if self._state not in _AT_ITS_END:
                await self._end("interrupted", causes(error)[0])
            raise

    def _opening(self, bus: Bus, run: int) -> AbstractAsyncContextManager[Evaluations]:
        return Evaluations(
            bus,
            Fleet(self.sweep.fingerprint, self.sweep.versions),
            coordinator=self.sweep.sweep_id,
            parallel=self.sweep.plan.config.sweep.parallel_evals,
            on_fleet=self._on_fleet(),
            earlier=Earlier(run, self._branches.requested, self._branches.measured),
            share=self._share,
        ).open()

    def _on_fleet(self) -> Callable[[FleetView], None]:
        """What hears of the workers; the search keeps in flight what suits them and our share."""
        slots, share = 0, self._share

        def suit() -> None:
            self._branches.suit(min(slots, share.slots) if share is not None else slots)

        def on_fleet(view: FleetView) -> None:
            nonlocal slots
            slots = view.slots
            self._observers.fleet(view)
            suit()

        if share is not None:
            share.on_change = suit
        return on_fleet

    async def _search(self, evaluations: Evaluations) -> CutShort:
        """Run the branches until they end, a stop is requested or the time is up.

        Returns:
            What has left some of it undone, unless all is done by then.
        """
        limit = self.sweep.plan.config.sweep.max_seconds
        left = None if limit is None else max(0.0, limit - self._elapsed())
        async with asyncio.TaskGroup() as group:
            searching = group.create_task(self._branches.run(self.sweep.open_proposer, evaluations))
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
        """Send nothing more, and give what runs its grace."""
        self._move(RunState.WINDING_DOWN)
        grace = self._stop.grace_seconds
        try:
            async with asyncio.timeout(grace):
                evaluating = self._branches.stop()
                await evaluations.cancel(grace)
                if evaluating:
                    await asyncio.wait(evaluating)
        except TimeoutError:
            log.info("coordinator.grace_ended", seconds=grace)
        except BusError as error:
            log.warning("coordinator.cancelled_unheard", error=str(error))

    async def _end_at_once(self, failure: BaseException | None = None) -> None:
        """End as far as that goes without waiting for long."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                await self._end("interrupted", failure)
        except TimeoutError:
            log.warning("sweep.end_unwritten", seconds=LAST_SECONDS)

    async def _end(self, cut_short: CutShort, failure: BaseException | None = None) -> SweepResult:
        self._move(RunState.ENDING)
        # What was measured while the journal was busy counts, too.
        await self._log.settled()
        at = self._elapsed()
        result = sweep_result(
            self.sweep,
            self._branches,
            cut_short=None if self._branches.is_over else cut_short,
            evaluations=self._evaluations,
            search_seconds=self.sweep.past.search_seconds + at - self._search_began,
            total_seconds=at,
        )
        await self._log_end(result, failure, at)
        if self._evaluations is not None:
            self._evaluations.announces_leaving = failure is None
        self._observers.ended(result, pareto=self.sweep.plan.config.goal.is_pareto)
        await self._observers.settled()
        self._move(RunState.ENDED)
        return result

    def _move(self, state: RunState) -> None:
        self._state = moved("a run", TRANSITIONS, self._state, state)

    async def _log_end(self, result: SweepResult, failure: BaseException | None, at: float) -> None:
        """Write down that the sweep has ended, or that this run of it has."""
        kept = result.model_copy(update={"ranking": result.ranking[:_KEPT_RANKS]})
        if failure is None and result.status != "interrupted":
            await self._log.record(Ended(at=at, result=kept), lambda: None, status=result.status)
            return
        requeued = self._stop.requeues and isinstance(failure, BusUnavailableError)
        failed = failure is not None and not requeued
        status = "queued" if requeued else "failed" if failed else self._stop.status
        stopped = Stopped(
            at=at,
            reason=result.reason if failure is None else _why(failure),
            failed=failed,
            cancelled=status == "cancelled",
            queued=status == "queued",
            result=kept,
        )
        await self._log.record(stopped, lambda: None, status=status)


def _why(failure: BaseException) -> str:
    """The reason of the end of a sweep that something has broken off."""
    if isinstance(failure, asyncio.CancelledError):
        return "it broke off"
    if isinstance(failure, SpicaError):
        return str(failure)
    return f"unexpected {type(failure).__name__}: {failure}"
