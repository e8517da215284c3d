"""Runs the sweeps of a journal side by side: what is queued, and what others have left."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from schemas.config import SmartSearchConfig
from spica_async.bus.broker_options import BrokerOptions
from spica_async.bus.port import Bus, BusUnavailableError
from spica_async.bus.rabbitmq.state import BusState
from spica_async.config.inputs import Inputs, inputs_of
from spica_async.errors import SpicaError, first_cause, keep_traceback
from spica_async.evaluate.cache.port import ResultCache
from spica_async.evaluate.fleet import FleetView
from spica_async.evaluate.turns import FairTurns
from spica_async.journal.leases import is_dead
from spica_async.journal.opening import config_of
from spica_async.journal.port import (
    Journal,
    JournalConflictError,
    LeaseLostError,
    SweepRow,
    SweepTakenError,
    SweepUnknownError,
)
from spica_async.processes.stopping import StopState
from spica_async.processes.threads import with_files
from spica_async.search.stopping import StoppedStatus, SweepStop
from spica_async.service.idle_sweeps import stop_idle_sweep
from spica_async.service.jobs import ResumedJob
from spica_async.service.port import WrongStateError
from spica_async.service.run_sweep import RunContext, run_job
from spica_async.service.watch import SweepWatch
from spica_async.storage.errors import StorageDamagedError, StorageError
from spica_async.traces.serve import TraceServer

LOOK_SECONDS: Final = 1.0
"""Between one look at the journal and the next; others may have written to it."""

JOURNAL_AWAY: Final = "the journal is away"
UNFINISHED: Final = ("queued", "running")
REQUESTED: Final[dict[str | None, StoppedStatus]] = {"pause": "paused", "cancel": "cancelled"}
"""The status of a sweep that was requested to pause or to cancel."""

_FIRST_POSTPONEMENT_SECONDS: Final = 5.0
_LONGEST_POSTPONEMENT_SECONDS: Final = 300.0
_MOST_FUTILE_RUNS: Final = 10
"""A sweep that has taken its coordinator down so often is left alone."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ManagerSettings:
    """How a daemon runs sweeps.

    Attributes:
        output: the folder for the sweeps' own folders, an absolute path.
        parallel_sweeps: how many run side by side.
        max_queued: how many may wait.
        grace_seconds: after a stop, for evaluations that run to bring their result.
        broker: behind the bus; none for one in memory.
        traces: serves traces to workers; none: each sweep has a server of its own.
        slots: evaluations at a time when no worker has been heard of.
    """

    output: Path
    parallel_sweeps: int = 2
    max_queued: int = 100
    grace_seconds: float = 0.0
    broker: BrokerOptions | None = None
    traces: TraceServer | None = None
    slots: int = 1


@dataclass(slots=True)
class Running:
    """A sweep that this daemon runs.

    Attributes:
        sweep_id: the name of the sweep.
        watch: knows what it comes to.
        stop: ends it.
    """

    sweep_id: str
    watch: SweepWatch
    stop: SweepStop


class SweepRunner:
    """Runs what is queued, and what others have left; `run` does the work.

    Args:
        journal: the journal that has the sweeps.
        bus: the bus that workers listen to.
        cache: the results that were measured before.
        settings: how sweeps are run.
        on_change: called when there may be something new to publish.

    Attributes:
        running: the sweeps that this daemon runs, by name.
        is_ending: whether nothing is begun any more.
    """

    def __init__(
        self,
        journal: Journal,
        bus: Bus,
        cache: ResultCache,
        settings: ManagerSettings,
        on_change: Callable[[], None],
    ) -> None:
        self.running: dict[str, Running] = {}
        self.is_ending = False
        self._journal = journal
        self._bus = bus
        self._cache = cache
        self._settings = settings
        self._on_change = on_change
        self._turns = FairTurns(settings.slots)
        self._slots: dict[str, int] = {}
        self._look = asyncio.Event()
        self._journal_trouble: str | None = None
        self._bus_trouble: str | None = None
        # When it may be tried again, by the loop's clock, and for how long it was left alone.
        self._postponed: dict[str, tuple[float, float]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Run sweeps until `stop` is set.

        What runs then is stopped, and queued again for the next daemon; so it is when this is
        cancelled.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._wake_at(stop))
            try:
                while not stop.is_set():
                    await self._look_around(group)
                    await set_or_late(self._look)
            finally:
                self.is_ending = True
                for running in self.running.values():
                    running.stop.request_status("queued")
            # Until the last has ended it may be requested to pause or to cancel.
            while self.running:
                await self._look_around(group)
                await set_or_late(self._look)

    def wake(self) -> None:
        """There is something new in the journal."""
        self._look.set()

    def retry(self, sweep_id: str) -> None:
        """Try a sweep at once that was to be left alone for a while."""
        self._postponed.pop(sweep_id, None)
        self.wake()

    def on_bus(self, state: BusState, why: str) -> None:
        """Hear how the bus stands with its broker; nothing is begun while it is away."""
        self._bus_trouble = None if state is BusState.CONNECTED else why
        self.wake()

    @property
    def troubles(self) -> list[str]:
        """What keeps sweeps from being begun. Anybody may ask, so the details are in the log."""
        found = [JOURNAL_AWAY] if self._journal_trouble is not None else []
        found += ["the broker is away"] if self._bus_trouble is not None else []
        return found or (["it is ending"] if self.is_ending else [])

    async def inputs(self, config: SmartSearchConfig) -> Inputs:
        """Check a configuration against its trace.

        Raises:
            InputError: it can never be run.
        """
        broker = self._settings.broker
        limited = config if broker is None else broker.limited(config)
        return await with_files(inputs_of, limited, lambda line: log.info("sweep.note", note=line))

    async def _wake_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.wake()

    async def _look_around(self, group: asyncio.TaskGroup) -> None:
        self._look.clear()
        try:
            rows = await self._journal.wanted(UNFINISHED)
            await self._do_requests([row for row in rows if row.requested is not None])
            if not self.is_ending and self._bus_trouble is None:
                managed = [row for row in rows if row.status in UNFINISHED and row.managed]
                self._begin(managed, group)
        except StorageError as error:
            # Sweeps that run have a patience of their own.
            if self._journal_trouble is None:
                log.warning("daemon.journal_away", error=str(error))
            self._journal_trouble = str(error)
        else:
            self._journal_trouble = None

    async def _do_requests(self, rows: list[SweepRow]) -> None:
        """Do what any daemon was requested to do with sweeps."""
        for row in rows:
            status = REQUESTED.get(row.requested)
            running = self.running.get(row.sweep_id)
            if status is None:
                continue  # For a daemon of the version that knows it.
            if running is not None:
                running.stop.request_status(status)
            elif row.status != "running" and is_left(row):
                with suppress(SweepTakenError, WrongStateError, SweepUnknownError):
                    await stop_idle_sweep(self._journal, row, status)
                    self._on_change()

    def _begin(self, rows: list[SweepRow], group: asyncio.TaskGroup) -> None:
        now = asyncio.get_running_loop().time()
        names = {row.sweep_id for row in rows}
        self._postponed = {name: until for name, until in self._postponed.items() if name in names}
        waiting = [
            row
            for row in rows
            if row.sweep_id not in self.running
            # To write that it has stopped needs no coordinator.
            and not (row.status == "queued" and row.requested is not None)
            and is_left(row)
            and self._postponed.get(row.sweep_id, (0.0, 0.0))[0] <= now
        ]
        waiting.sort(key=lambda row: (-row.priority, row.submitted_at, row.sweep_id))
        for row in waiting:
            if row.requested is None and len(self.running) >= self._settings.parallel_sweeps:
                continue
            sweep_id = row.sweep_id
            watch = SweepWatch(sweep_id, partial(self._on_fleet, sweep_id))
            status = REQUESTED.get(row.requested)
            # One whose coordinator has died is brought back to be left in good order.
            state = StopState.PREPARING if status is None else StopState.WORKING
            stop = SweepStop(state, grace_seconds=self._settings.grace_seconds, requeues=True)
            if status is not None:
                stop.request_status(status)
            running = self.running[sweep_id] = Running(sweep_id, watch, stop)
            task = group.create_task(self._run_one(running))
            stop.attach(task)
            task.add_done_callback(partial(self._ended, sweep_id))

    def _ended(self, sweep_id: str, _task: asyncio.Task[None]) -> None:
        del self.running[sweep_id]
        self._slots.pop(sweep_id, None)
        self._on_change()
        self.wake()

    async def _run_one(self, running: Running) -> None:
        """Run a sweep to its end; what goes wrong with it leaves the other sweeps alone."""
        sweep_id = running.sweep_id
        try:
            await self._run_job(running)
            self._postponed.pop(sweep_id, None)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if running.stop.state is not StopState.CUT_OFF or task is None or task.uncancel() > 0:
                raise
            if running.stop.status != "queued":
                # It was cut off before it was searched, and the next daemon does not run it.
                await self._stop_idle_sweep(sweep_id, running.stop.status)
        except (WrongStateError, SweepUnknownError) as error:
            log.info("sweep.moved", sweep=sweep_id, error=str(error))
        except (SweepTakenError, LeaseLostError) as error:
            log.info("sweep.taken_by_another", sweep=sweep_id, error=str(error))
            self._postpone(sweep_id)
        except (StorageDamagedError, JournalConflictError) as error:
            await self._fail(sweep_id, str(error))
        except (StorageError, BusUnavailableError) as error:
            log.warning("sweep.left", sweep=sweep_id, error=str(error))
            self._postpone(sweep_id)
        except SpicaError as error:
            await self._fail(sweep_id, str(error))
        except Exception:  # noqa: BLE001  # a bug of ours must not take the other sweeps along
            trace = keep_traceback(traceback.format_exc())
            await self._fail(sweep_id, f"unexpected: {trace}")

    async def _run_job(self, running: Running) -> None:
        row = await self._journal.sweep(running.sweep_id)
        inputs = await self.inputs(config_of(row))
        job = ResumedJob(
            row.sweep_id,
            inputs,
            folder=Path(row.folder),
            journal=lambda: nullcontext(self._journal),
            on_change=self._on_change,
            only_from=UNFINISHED,
            most_futile_runs=_MOST_FUTILE_RUNS,
        )
        async with self._turns.share(row.priority) as share:
            context = RunContext(
                bus=self._bus,
                broker=self._settings.broker,
                observer=running.watch,
                cache=self._cache,
                use_cache=row.use_cache,
                share=share,
                traces=self._settings.traces,
            )
            try:
                await run_job(job, context, running.stop)
            except BaseExceptionGroup as group:
                raise first_cause(group) from group

    async def _fail(self, sweep_id: str, reason: str) -> None:
        log.error("sweep.failed", sweep=sweep_id, reason=reason)
        await self._stop_idle_sweep(sweep_id, "failed", failure=reason)

    async def _stop_idle_sweep(
        self, sweep_id: str, status: str, *, failure: str | None = None
    ) -> None:
        """Stop a sweep that we run no more, unless it has stopped by itself."""
        try:
            row = await self._journal.sweep(sweep_id)
            if row.status in UNFINISHED:
                await stop_idle_sweep(self._journal, row, status, failure=failure)
        except SpicaError as error:
            # It is begun again, with what was requested of it.
            log.warning("sweep.rest_unwritten", sweep=sweep_id, status=status, error=str(error))
            self._postpone(sweep_id)

    def _postpone(self, sweep_id: str) -> None:
        """Leave a sweep alone for a while, each time for longer."""
        _, last = self._postponed.get(sweep_id, (0.0, _FIRST_POSTPONEMENT_SECONDS / 2))
        pause = min(2 * last, _LONGEST_POSTPONEMENT_SECONDS)
        self._postponed[sweep_id] = asyncio.get_running_loop().time() + pause, pause

    def _on_fleet(self, sweep_id: str, view: FleetView) -> None:
        # A sweep that has just begun has not heard of all workers yet.
        self._slots[sweep_id] = view.slots
        self._turns.resize(max(self._slots.values()) or self._settings.slots)


def is_left(row: SweepRow) -> bool:
    """Whether nobody runs a sweep, as far as we can see."""
    return row.owner is None or row.lease_seconds <= 0 or is_dead(row.owner)


async def set_or_late(event: asyncio.Event) -> None:
    """Wait for an event, but not for long: other daemons change the journal without setting it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LOOK_SECONDS):
            await event.wait()
