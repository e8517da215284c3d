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

from schemas.config import SmartSearchConfig
from schemas.daemon import CandidatePage, SweepDetail, SweepSummary
from schemas.journal import SWEEP_FACT, Stopped
from schemas.lifecycle import SWEEP_EVENT, SweepEvent
from spica_async.broker import BrokerOptions
from spica_async.bus.port import Bus
from spica_async.daemon.port import QueueFullError, UnknownSweepError, WrongStateError
from spica_async.daemon.stored import ENDED, CandidateFiles, detail_of, summary_of
from spica_async.daemon.watch import SweepWatch
from spica_async.errors import SpicaError, first_cause, keep_traceback
from spica_async.evaluations import FairTurns
from spica_async.fleet import FleetView
from spica_async.inputs import Inputs, inputs_of
from spica_async.jobs import ResumedJob
from spica_async.journal import (
    Fact,
    Journal,
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

    row: SweepRow
    watch: SweepWatch
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    stopped_as: StoppedAs = "queued"

    def end(self, stopped_as: StoppedAs) -> None:
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
        self.on_news: Callable[[], None] = lambda: None

    async def run(self, stop: asyncio.Event) -> None:
        """Run what is queued, and what others have left, until `stop` is set.

        What runs then is stopped, and queued again for the next daemon.
        """
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(stop.wait())
            while not stop.is_set():
                self._look.clear()
                try:
                    await self._start_what_waits(group)
                    self._trouble = None
                except JournalError as error:
                    # Sweeps that run have a patience of their own.
                    log.warning("daemon.journal_away", error=str(error))
                    self._trouble = str(error)
                looking = asyncio.ensure_future(self._look.wait())
                await asyncio.wait(
                    {looking, stopping}, timeout=LOOK_SECONDS, return_when="FIRST_COMPLETED"
                )
                looking.cancel()
            self._stopping = True
            for running in self._running.values():
                running.end("queued")

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
        detail = await detail_of(self._journal, row)
        running = self._running.get(sweep_id)
        if running is None or not running.watch.progress:
            return detail
        return detail.model_copy(
            update={
                "branches": running.watch.progress,
                "tally": running.watch.tally,
                "best": running.watch.best(config_of(row).goal),
            }
        )

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
        return await self._end(sweep_id, "cancelled", from_states={*_UNFINISHED, *_RESTING})

    async def pause(self, sweep_id: str) -> SweepSummary:
        """See `Control.pause`."""
        return await self._end(sweep_id, "paused", from_states=_UNFINISHED)

    async def resume(self, sweep_id: str) -> SweepSummary:
        """See `Control.resume`."""
        row = await self._row(sweep_id)
        if row.status not in _RESTING:
            raise WrongStateError(f"sweep {sweep_id} is {row.status}: it does not rest")
        await self._journal.wish(sweep_id, None)
        await self._write(row, "queued")
        self._wake()
        return summary_of(await self._row(sweep_id))

    async def events(self, sweep_id: str | None, *, after: int = 0) -> AsyncIterator[SweepEvent]:
        """See `Control.events`."""
        if sweep_id is not None:
            async for event in self._events_of(sweep_id, after):
                yield event
            return
        known = {row.sweep_id: row.events for row in await self._journal.sweeps()}
        while True:
            news = self._news
            for row in await self._journal.sweeps():
                before = known.get(row.sweep_id, 0)
                if row.events > before:
                    async for recorded in self._journal.events(row.sweep_id, before):
                        known[row.sweep_id] = recorded.number
                        yield SWEEP_EVENT.validate_json(recorded.body)
            await _set_or_late(news)

    async def troubles(self) -> Sequence[str]:
        """See `Control.troubles`."""
        if self._trouble is not None:
            return [self._trouble]
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

    async def _end(
        self, sweep_id: str, stopped_as: StoppedAs, *, from_states: Collection[str]
    ) -> SweepSummary:
        row = await self._row(sweep_id)
        if row.status not in from_states or row.status == stopped_as:
            raise WrongStateError(f"sweep {sweep_id} is {row.status}")
        running = self._running.get(sweep_id)
        if running is not None:
            running.end(stopped_as)
        elif row.status == "running":
            # Whoever runs it looks at its wishes as often as we do; if nobody does, we shall.
            await self._journal.wish(sweep_id, "pause" if stopped_as == "paused" else "cancel")
            self._wake()
        else:
            await self._rest(row, stopped_as)
        return summary_of(await self._row(sweep_id))

    async def _rest(self, row: SweepRow, status: StoppedAs, failure: str | None = None) -> None:
        """Let a sweep rest that nobody runs, and that was left in good order.

        Raises:
            WrongStateError: somebody runs it by now.
        """
        latest = await self._journal.latest(row.sweep_id, ["stopped"])
        before = SWEEP_FACT.validate_json(latest.fact.body) if latest is not None else None
        stopped = Stopped(
            at=before.at if before is not None else 0.0,
            reason=failure or f"it was {status} while nobody ran it",
            failed=failure is not None,
            cancelled=status == "cancelled",
            result=before.result if isinstance(before, Stopped) else None,
        )
        await self._write(row, status if failure is None else "failed", stopped)

    async def _write(self, row: SweepRow, status: str, fact: Stopped | None = None) -> None:
        """Write a sweep's new status, and the fact that makes it so.

        Raises:
            WrongStateError: somebody runs it by now.
        """
        lease = new_lease()
        try:
            await take(self._journal, row.sweep_id, lease)
        except SweepTakenError as error:
            raise WrongStateError(str(error)) from error
        try:
            row = await self._row(row.sweep_id)
            facts, events = [], []
            if fact is not None:
                facts = [Fact(fact.kind, fact.model_dump_json())]
                told = SweepLifecycle(config_of(row).goal).fact(fact)
                events = [
                    SweepEvent.of(row.sweep_id, number, data).model_dump_json(exclude_none=True)
                    for number, data in enumerate(told, row.events + 1)
                ]
            news = News(status=status, events=events, events_after=row.events, managed=True)
            await self._journal.append(row.sweep_id, lease.owner, facts, after=row.last, news=news)
        finally:
            await self._journal.give_back(row.sweep_id, lease.owner)
        self._tell_news()

    async def _start_what_waits(self, group: asyncio.TaskGroup) -> None:
        rows = await self._journal.sweeps(_UNFINISHED)
        for row in rows:
            running = self._running.get(row.sweep_id)
            if running is not None and row.wish is not None:
                running.end(_as_wished(row))
        waiting = [row for row in rows if self._is_free(row)]
        waiting.sort(key=lambda row: (-row.priority, row.submitted_at, row.sweep_id))
        for row in waiting:
            if row.wish is None and len(self._running) >= self._settings.parallel_sweeps:
                continue
            watch = SweepWatch(row.sweep_id, self._on_fleet)
            running = self._running[row.sweep_id] = _Running(row, watch)
            if row.wish is not None:
                # Its coordinator has died: it is brought back to be left in good order.
                running.end(_as_wished(row))
            group.create_task(self._run_one(running))

    def _is_free(self, row: SweepRow) -> bool:
        if not row.managed or row.sweep_id in self._running:
            return False
        return row.owner is None or row.lease_seconds <= 0 or is_dead(row.owner)

    async def _run_one(self, running: _Running) -> None:
        """Run a sweep to its end; whatever goes wrong with it is its own."""
        row = running.row
        try:
            await self._run_job(running)
        except (SweepTakenError, LeaseLostError) as error:
            log.info("sweep.taken_by_another", sweep=row.sweep_id, error=str(error))
        except JournalError as error:
            # It is looked at again as soon as there is a journal.
            log.warning("sweep.left", sweep=row.sweep_id, error=str(error))
        except SpicaError as error:
            await self._fail(row, str(error))
        except Exception:  # noqa: BLE001  # a bug of ours must not take the other sweeps along
            told = keep_traceback(traceback.format_exc())
            await self._fail(row, f"unexpected: {told}")
        finally:
            del self._running[row.sweep_id]
            self._tell_news()
            self._wake()

    async def _run_job(self, running: _Running) -> None:
        row = running.row
        inputs = await self._inputs(config_of(row))
        job = ResumedJob(
            row.sweep_id,
            inputs,
            folder=Path(row.folder),
            journal=lambda: nullcontext(self._journal),
            news=self._tell_news,
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

    async def _fail(self, row: SweepRow, reason: str) -> None:
        log.error("sweep.failed", sweep=row.sweep_id, reason=reason)
        try:
            if (await self._row(row.sweep_id)).status in _UNFINISHED:
                await self._rest(row, "interrupted", reason)
        except SpicaError as error:
            log.warning("sweep.failure_unwritten", sweep=row.sweep_id, error=str(error))

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


def _as_wished(row: SweepRow) -> StoppedAs:
    return "paused" if row.wish == "pause" else "cancelled"


async def _set_or_late(event: asyncio.Event) -> None:
    """Wait for an event, and no longer than another daemon's news may take."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LOOK_SECONDS):
            await event.wait()


async def _nothing_more(plan: SweepPlan, folder: ResultsFolder) -> None:
    """The daemon's workers run already."""
