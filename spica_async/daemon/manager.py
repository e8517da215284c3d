"""Runs the sweeps of a journal side by side, and does what is asked of it."""

from __future__ import annotations

import asyncio
import hashlib
import traceback
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog
from pydantic import ValidationError

from schemas.config import SmartSearchConfig
from schemas.daemon import CandidatePage, SweepDetail, SweepSummary
from schemas.journal import SWEEP_FACT, Stopped
from schemas.lifecycle import SWEEP_EVENT, SweepEvent
from schemas.summary import ListedSweep
from spica_async.broker import BrokerOptions
from spica_async.bus.port import Bus
from spica_async.daemon.port import QueueFullError, UnknownSweepError, WrongStateError
from spica_async.daemon.stored import (
    ENDED,
    CandidateFiles,
    detail_of,
    running_detail,
    summary_of,
)
from spica_async.daemon.watch import SweepWatch
from spica_async.errors import SpicaError, first_cause, keep_traceback
from spica_async.evaluations import FairTurns
from spica_async.fleet import FleetView
from spica_async.inputs import Inputs, inputs_of
from spica_async.jobs import ResumedJob, SweepMovedError
from spica_async.journal import (
    Fact,
    Journal,
    JournalConflictError,
    JournalDamagedError,
    JournalError,
    LeaseLostError,
    News,
    SweepExistsError,
    SweepRow,
    SweepTakenError,
    SweepUnknownError,
)
from spica_async.journal.opening import config_of, new_lease, new_sweep, take
from spica_async.journal.owner import is_dead
from spica_async.lifecycle import SweepLifecycle
from spica_async.plan.types import SweepPlan
from spica_async.result_cache import ResultCache
from spica_async.results import ResultsFolder, new_sweep_id
from spica_async.running import Means, run_job
from spica_async.sweep import StoppedAs

LOOK_SECONDS: Final = 1.0
"""Between one look at the journal and the next; others may have written to it."""

_UNFINISHED: Final = ("queued", "running")
_RESTING: Final = frozenset({"paused", "interrupted", "failed", "cancelled"})
_WISHED: Final[dict[str, StoppedAs]] = {"pause": "paused", "cancel": "cancelled"}
_WEIGHTS: Final[dict[StoppedAs, int]] = {
    "queued": 0,
    "interrupted": 1,
    "paused": 2,
    "cancelled": 3,
}
_SCAN_SECONDS: Final = 0.25
_FIRST_POSTPONEMENT_SECONDS: Final = 5.0
_LONGEST_POSTPONEMENT_SECONDS: Final = 300.0
_MOST_FUTILE_RUNS: Final = 10
"""A sweep that has taken its coordinator down so often is left alone."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """How a daemon runs sweeps.

    Attributes:
        output: the folder for the sweeps' own folders.
        parallel_sweeps: how many run side by side.
        max_queued: how many may wait.
        grace_seconds: after a stop, for evaluations that run to bring their result.
        broker: behind the bus; none for one in memory.
        slots: evaluations at a time when no worker has been heard of.
    """

    output: Path
    parallel_sweeps: int = 2
    max_queued: int = 100
    grace_seconds: float = 0.0
    broker: BrokerOptions | None = None
    slots: int = 1


@dataclass(slots=True)
class _Running:
    """A sweep that this daemon runs."""

    sweep_id: str
    watch: SweepWatch
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    stopped_as: StoppedAs = "queued"

    def end(self, stopped_as: StoppedAs) -> None:
        """Stop it; of several reasons the weightiest counts."""
        if not self.stop.is_set() or _WEIGHTS[stopped_as] > _WEIGHTS[self.stopped_as]:
            self.stopped_as = stopped_as
        self.stop.set()


class SweepManager:
    """A `Control` over a journal and a bus; `run` does the work.

    Args:
        journal: has the sweeps.
        bus: that workers listen to.
        cache: of what was measured before.
        settings: how sweeps are run.

    Attributes:
        on_news: called when there may be something new to tell others.
    """

    def __init__(
        self, journal: Journal, bus: Bus, cache: ResultCache, settings: ManagerSettings
    ) -> None:
        self._journal = journal
        self._cache = cache
        self._bus = bus
        self._settings = settings
        self._turns = FairTurns(settings.slots)
        self._running: dict[str, _Running] = {}
        self._files = CandidateFiles()
        self._look = asyncio.Event()
        self._news = asyncio.Event()
        self._stopping = False
        self._trouble: str | None = None
        # When it may be tried again, by the loop's clock, and for how long it was left alone.
        self._postponed: dict[str, tuple[float, float]] = {}
        self.on_news: Callable[[], None] = lambda: None

    async def run(self, stop: asyncio.Event) -> None:
        """Run what is queued, and what others have left, until `stop` is set.

        What runs then is stopped, and queued again for the next daemon; so it is when this is
        cancelled.
        """
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(stop.wait())
            try:
                while not stop.is_set():
                    self._look.clear()
                    await self._look_around(group)
                    looking = asyncio.ensure_future(self._look.wait())
                    await asyncio.wait(
                        {looking, stopping}, timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED"
                    )
                    looking.cancel()
            finally:
                self._stopping = True
                for running in self._running.values():
                    running.end("queued")

    async def _look_around(self, group: asyncio.TaskGroup) -> None:
        try:
            await self._start_what_waits(group)
        except JournalError as error:
            # Sweeps that run have a patience of their own.
            if self._trouble is None:
                log.warning("daemon.journal_away", error=str(error))
            self._trouble = str(error)
        else:
            self._trouble = None

    def runs(self, sweep_id: str) -> bool:
        """Whether this daemon runs a sweep."""
        return sweep_id in self._running

    # What is asked of it; see `Control`.

    async def submit(
        self,
        config: SmartSearchConfig,
        *,
        priority: int,
        use_cache: bool,
        token: str | None = None,
    ) -> SweepSummary:
        """See `Control.submit`."""
        sweep_id = new_sweep_id() if token is None else _named_after(token)
        if token is not None:
            with suppress(UnknownSweepError):
                return summary_of(await self._row(sweep_id))
        await self._inputs(config)
        waiting = [row for row in await self._journal.sweeps(["queued"]) if row.managed]
        if len(waiting) >= self._settings.max_queued:
            raise QueueFullError(f"{len(waiting)} sweeps are queued, and no more are taken")
        folder = self._settings.output / sweep_id
        sweep = new_sweep(
            sweep_id, config, folder, priority=priority, managed=True, use_cache=use_cache
        )
        with suppress(SweepExistsError):  # The same submission has come twice at once.
            await self._journal.create(sweep)
        self._wake()
        return summary_of(await self._row(sweep_id))

    async def sweeps(self) -> Sequence[SweepSummary]:
        """See `Control.sweeps`."""
        return [summary_of(row) for row in await self._journal.sweeps()]

    async def sweep(self, sweep_id: str) -> SweepDetail:
        """See `Control.sweep`."""
        row = await self._row(sweep_id)
        running = self._running.get(sweep_id)
        if running is not None and running.watch.progress:
            return running_detail(row, running.watch, config_of(row).goal)
        return await detail_of(self._journal, row)

    async def candidates(self, sweep_id: str, *, offset: int, limit: int) -> CandidatePage:
        """See `Control.candidates`."""
        running = self._running.get(sweep_id)
        if running is not None and running.watch.progress:
            records = running.watch.records
            return CandidatePage(
                total=len(records),
                offset=offset,
                candidates=records[offset : offset + limit],
            )
        row = await self._row(sweep_id)
        return await self._files.page(Path(row.folder), offset=offset, limit=limit)

    async def cancel(self, sweep_id: str) -> SweepSummary:
        """See `Control.cancel`."""
        return await self._end(sweep_id, "cancel", from_states={*_UNFINISHED, *_RESTING})

    async def pause(self, sweep_id: str) -> SweepSummary:
        """See `Control.pause`."""
        return await self._end(sweep_id, "pause", from_states=_UNFINISHED)

    async def resume(self, sweep_id: str) -> SweepSummary:
        """See `Control.resume`."""
        row = await self._row(sweep_id)
        left_by_command = row.status == "running" and not row.managed and _is_left(row)
        if row.status not in _RESTING and not left_by_command:
            raise WrongStateError(f"sweep {sweep_id} is {row.status}: it does not rest")
        try:
            await self._write(row, "queued", managed=True)
        except SweepTakenError as error:
            raise WrongStateError(str(error)) from error
        self._postponed.pop(sweep_id, None)
        self._wake()
        return summary_of(await self._row(sweep_id))

    async def events(self, sweep_id: str | None, *, after: int = 0) -> AsyncIterator[SweepEvent]:
        """See `Control.events`."""
        if sweep_id is not None:
            async for event in self._events_of(sweep_id, after):
                yield event
            return
        known = await self._journal.event_counts()
        while True:
            news = self._news
            for changed, number in (await self._journal.event_counts()).items():
                if number > known.get(changed, 0):
                    async for recorded in self._journal.events(changed, known.get(changed, 0)):
                        known[changed] = recorded.number
                        yield SWEEP_EVENT.validate_json(recorded.body)
            await asyncio.sleep(_SCAN_SECONDS)
            await _set_or_late(news)

    async def troubles(self) -> Sequence[str]:
        """See `Control.troubles`."""
        if self._trouble is not None:
            # Anybody may ask, so the details are in the log.
            return ["the journal is away"]
        return ["it is ending"] if self._stopping else []

    # How it does that.

    async def _events_of(self, sweep_id: str, after: int) -> AsyncIterator[SweepEvent]:
        while True:
            news = self._news
            row = await self._row(sweep_id)
            async for recorded in self._journal.events(sweep_id, after):
                after = recorded.number
                yield SWEEP_EVENT.validate_json(recorded.body)
            if after >= row.events and row.status in ENDED | {"cancelled"}:
                return
            await _set_or_late(news)

    async def _row(self, sweep_id: str) -> SweepRow:
        try:
            return await self._journal.sweep(sweep_id)
        except SweepUnknownError as error:
            raise UnknownSweepError(str(error)) from error

    async def _inputs(self, config: SmartSearchConfig) -> Inputs:
        broker = self._settings.broker
        limited = config if broker is None else broker.limited(config)
        return await asyncio.to_thread(
            inputs_of, limited, lambda line: log.info("sweep.note", note=line)
        )

    async def _end(self, sweep_id: str, wish: str, *, from_states: Collection[str]) -> SweepSummary:
        row = await self._row(sweep_id)
        if row.status not in from_states or row.status == _WISHED[wish]:
            raise WrongStateError(f"sweep {sweep_id} is {row.status}")
        if row.status != "running" and not self.runs(sweep_id):
            with suppress(SweepTakenError):  # Somebody has begun to run it: see below.
                await self._rest(row, _WISHED[wish])
                return summary_of(await self._row(sweep_id))
        elif not row.managed and not self.runs(sweep_id):
            # Of a command, which grants no wishes.
            if not _is_left(row):
                raise WrongStateError(f"sweep {sweep_id} is run by {row.owner}, no daemon")
            await self._write(row, _WISHED[wish])
            return summary_of(await self._row(sweep_id))
        # Before it has an effect, so that it is granted whatever becomes of us. Other daemons look
        # at the wishes for what they run, and for what nobody runs any more.
        if row.wish != "cancel":
            await self._journal.wish(sweep_id, wish)
        running = self._running.get(sweep_id)
        if running is not None:
            running.end(_WISHED[wish])
        self._wake()
        return summary_of(await self._row(sweep_id))

    async def _rest(self, row: SweepRow, status: str, failure: str | None = None) -> None:
        """Let a sweep rest that nobody runs.

        Raises:
            SweepTakenError: somebody runs it by now.
            WrongStateError: it is in another state by now.
        """
        before = await self._last_stop(row.sweep_id)
        stopped = Stopped(
            at=before.at if before is not None else 0.0,
            reason=failure or f"it was {status} while nobody ran it",
            failed=failure is not None,
            cancelled=status == "cancelled",
            result=before.result if before is not None else None,
        )
        await self._write(row, status, stopped)

    async def _last_stop(self, sweep_id: str) -> Stopped | None:
        recorded = await self._journal.latest(sweep_id, ["stopped"])
        try:
            fact = SWEEP_FACT.validate_json(recorded.fact.body) if recorded is not None else None
        except ValidationError:
            return None  # Of another version; it is for the figures alone.
        return fact if isinstance(fact, Stopped) else None

    async def _write(
        self,
        row: SweepRow,
        status: str,
        fact: Stopped | None = None,
        *,
        managed: bool | None = None,
    ) -> None:
        """Write a sweep's new status, and the fact that makes it so.

        Raises:
            SweepTakenError: somebody runs it by now.
            WrongStateError: it is in another state by now.
        """
        lease = new_lease()
        await take(self._journal, row.sweep_id, lease)
        try:
            now = await self._row(row.sweep_id)
            if now.status != row.status:
                raise WrongStateError(f"sweep {row.sweep_id} is {now.status} by now")
            listed = ListedSweep.model_validate_json(now.summary)
            reason = fact.reason if fact is not None else None
            news = News(
                status=status,
                summary=listed.model_copy(update={"reason": reason}).model_dump_json(),
                events=await self._events_for(now, fact) if fact is not None else [],
                events_after=now.events,
                managed=managed,
                granted=True,
            )
            facts = [Fact(fact.kind, fact.model_dump_json())] if fact is not None else []
            await self._journal.append(row.sweep_id, lease.owner, facts, after=now.last, news=news)
        finally:
            await self._journal.give_back(row.sweep_id, lease.owner)
        self._tell_news()

    async def _events_for(self, row: SweepRow, fact: Stopped) -> list[str]:
        """What others are told of a fact that is written while nobody runs the sweep.

        Nothing where they may not have been told yet of what comes before it: when the sweep is
        resumed, they are told of both.
        """
        if await self._journal.latest(row.sweep_id, ["suggested"], after=row.last - 1) is not None:
            return []
        try:
            told = SweepLifecycle(config_of(row).goal).fact(fact)
        except JournalError:
            return []  # Its configuration cannot be read.
        return [
            SweepEvent.of(row.sweep_id, number, data).model_dump_json(exclude_none=True)
            for number, data in enumerate(told, row.events + 1)
        ]

    async def _start_what_waits(self, group: asyncio.TaskGroup) -> None:
        rows = [row for row in await self._journal.sweeps(_UNFINISHED) if row.managed]
        for row in rows:
            running = self._running.get(row.sweep_id)
            if running is not None and row.wish is not None:
                running.end(_WISHED[row.wish])
        now = asyncio.get_running_loop().time()
        waiting = [
            row
            for row in rows
            if not self.runs(row.sweep_id)
            and _is_left(row)
            and self._postponed.get(row.sweep_id, (0.0, 0.0))[0] <= now
        ]
        waiting.sort(key=lambda row: (-row.priority, row.submitted_at, row.sweep_id))
        for row in waiting:
            if row.wish is None and len(self._running) >= self._settings.parallel_sweeps:
                continue
            watch = SweepWatch(row.sweep_id, self._on_fleet)
            running = self._running[row.sweep_id] = _Running(row.sweep_id, watch)
            if row.wish is not None:
                # Its coordinator has died: it is brought back to be left in good order.
                running.end(_WISHED[row.wish])
            group.create_task(self._run_one(running))

    async def _run_one(self, running: _Running) -> None:
        """Run a sweep to its end; whatever goes wrong with it is its own."""
        sweep_id = running.sweep_id
        try:
            await self._run_job(running)
            self._postponed.pop(sweep_id, None)
        except SweepMovedError as error:
            log.info("sweep.moved", sweep=sweep_id, error=str(error))
        except (SweepTakenError, LeaseLostError) as error:
            log.info("sweep.taken_by_another", sweep=sweep_id, error=str(error))
            self._postpone(sweep_id)
        except (JournalDamagedError, JournalConflictError) as error:
            await self._fail(sweep_id, str(error))
        except JournalError as error:
            log.warning("sweep.left", sweep=sweep_id, error=str(error))
            self._postpone(sweep_id)
        except SpicaError as error:
            await self._fail(sweep_id, str(error))
        except Exception:  # noqa: BLE001  # a bug of ours must not take the other sweeps along
            told = keep_traceback(traceback.format_exc())
            await self._fail(sweep_id, f"unexpected: {told}")
        finally:
            del self._running[sweep_id]
            self._tell_news()
            self._wake()

    async def _run_job(self, running: _Running) -> None:
        row = await self._row(running.sweep_id)
        inputs = await self._inputs(config_of(row))
        job = ResumedJob(
            row.sweep_id,
            inputs,
            folder=Path(row.folder),
            journal=lambda: nullcontext(self._journal),
            news=self._tell_news,
            only_from=_UNFINISHED,
            most_futile_runs=_MOST_FUTILE_RUNS,
        )
        async with self._turns.share(row.priority) as share:
            means = Means(
                bus=self._bus,
                broker=self._settings.broker,
                display=running.watch,
                grace_seconds=self._settings.grace_seconds,
                cache=self._cache,
                use_cache=row.use_cache,
                share=share,
                stopped_as=lambda: running.stopped_as,
            )
            try:
                await run_job(job, means, running.stop, before_search=_nothing_more)
            except BaseExceptionGroup as group:
                cause = first_cause(group)
                if isinstance(cause, SpicaError):
                    raise cause from group
                raise

    async def _fail(self, sweep_id: str, reason: str) -> None:
        log.error("sweep.failed", sweep=sweep_id, reason=reason)
        try:
            row = await self._row(sweep_id)
            if row.status in _UNFINISHED:
                await self._rest(row, "failed", reason)
        except SpicaError as error:
            log.warning("sweep.failure_unwritten", sweep=sweep_id, error=str(error))
            self._postpone(sweep_id)

    def _postpone(self, sweep_id: str) -> None:
        """Leave a sweep alone for a while, each time for longer."""
        _, last = self._postponed.get(sweep_id, (0.0, _FIRST_POSTPONEMENT_SECONDS / 2))
        pause = min(2 * last, _LONGEST_POSTPONEMENT_SECONDS)
        self._postponed[sweep_id] = asyncio.get_running_loop().time() + pause, pause

    def _on_fleet(self, view: FleetView) -> None:
        self._turns.resize(view.slots or self._settings.slots)

    def _wake(self) -> None:
        self._look.set()

    def _tell_news(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()
        self.on_news()


def _named_after(token: str) -> str:
    return f"command-{hashlib.sha256(token.encode()).hexdigest()[:24]}"


def _is_left(row: SweepRow) -> bool:
    """Whether nobody runs a sweep, as far as we can tell."""
    return row.owner is None or row.lease_seconds <= 0 or is_dead(row.owner)


async def _set_or_late(event: asyncio.Event) -> None:
    """Wait for an event, and no longer than another daemon's news may take."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LOOK_SECONDS):
            await event.wait()


async def _nothing_more(plan: SweepPlan, folder: ResultsFolder) -> None:
    """The daemon's workers run already."""
