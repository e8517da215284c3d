"""Submits, lists, stops and resumes the sweeps of a journal, for HTTP and AMQP alike."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog
from pydantic import ValidationError

from schemas.config import SmartSearchConfig
from schemas.daemon import CandidatePage, StoredState, SweepDetail, SweepState, SweepSummary
from schemas.lifecycle import SWEEP_EVENT, SweepEvent
from spica_async.bus.port import Bus
from spica_async.errors import InputError
from spica_async.evaluate.cache.port import ResultCache
from spica_async.journal.opening import config_of
from spica_async.journal.port import (
    ENDED,
    Journal,
    NewSweep,
    Place,
    RecordedEvent,
    SweepExistsError,
    SweepRow,
    SweepTakenError,
)
from spica_async.report.folder import new_sweep_id
from spica_async.service.idle_sweeps import queue_idle_sweep, stop_idle_sweep
from spica_async.service.jobs import new_sweep
from spica_async.service.port import (
    Events,
    QueueFullError,
    SweepPage,
    UnreadableEvent,
    WrongStateError,
)
from spica_async.service.runner import (
    JOURNAL_AWAY,
    REQUESTED,
    UNFINISHED,
    ManagerSettings,
    SweepRunner,
    is_left,
    set_or_late,
)
from spica_async.service.stored import (
    artifact_of,
    candidate_page,
    detail_of,
    running_detail,
    state_of,
    summary_of,
)
from spica_async.service.write_probe import WriteProbe

_IDLE: Final = frozenset({"paused", "interrupted", "failed", "cancelled"})
_OVER: Final = ENDED | {"cancelled"}
"""The states after which a sweep has no more events."""
_MOST_KNOWN: Final = 10_000
"""Sweeps of which a stream of all remembers the last event."""
_SCAN_SECONDS: Final = 0.25
_LEASE_PATIENCE_SECONDS: Final = 15.0
"""For a coordinator that has just left a sweep to give back its lease."""


log = structlog.get_logger(__name__)


class SweepManager:
    """A `Control` over a journal and a bus.

    Args:
        journal: the journal that has the sweeps.
        bus: the bus that workers listen to.
        cache: the results that were measured before.
        settings: how sweeps are run.

    Attributes:
        runner: runs the sweeps.
        on_change: called when there may be events to publish.
    """

    def __init__(
        self, journal: Journal, bus: Bus, cache: ResultCache, settings: ManagerSettings
    ) -> None:
        self._journal = journal
        self._settings = settings
        self._change = asyncio.Event()
        # What is counted is what is then taken in.
        self._submitting = asyncio.Lock()
        self.on_change: Callable[[], None] = lambda: None
        self.runner = SweepRunner(journal, bus, cache, settings, self._announce_change)
        self._write_probe = WriteProbe(journal)

    async def run(self, stop: asyncio.Event) -> None:
        """See `SweepRunner.run`."""
        async with self._write_probe.running():
            await self.runner.run(stop)

    def runs(self, sweep_id: str) -> bool:
        """Whether this daemon runs a sweep."""
        return sweep_id in self.runner.running

    async def submit(
        self,
        config: SmartSearchConfig,
        *,
        priority: int,
        use_cache: bool,
        token: str | None = None,
    ) -> SweepSummary:
        """See `Control.submit`."""
        sweep_id = new_sweep_id()
        sweep = new_sweep(
            sweep_id,
            config,
            self._settings.output / sweep_id,
            priority=priority,
            managed=True,
            use_cache=use_cache,
            token=token,
        )
        if (known := await self._known(sweep)) is not None:
            return known
        # Before the trace is read, which may take long; what is counted under the lock decides.
        await self._check_queue()
        await self.runner.inputs(config)
        async with self._submitting:
            await self._check_queue()
            try:
                await self._journal.create(sweep)
            except SweepExistsError:
                # The same submission has come twice at once.
                if (known := await self._known(sweep)) is None:
                    raise
                return known
        self.runner.wake()
        return await self._summary(sweep_id)

    async def sweeps(
        self,
        state: StoredState | None = None,
        *,
        before: str | None = None,
        offset: int = 0,
        limit: int = 1000,
    ) -> SweepPage:
        """See `Control.sweeps`."""
        rows = await self._journal.sweeps(
            None if state is None else [state],
            after=None if before is None else _place(before),
            offset=offset,
            limit=limit + 1,
        )
        last = rows[limit - 1] if len(rows) > limit else None
        return SweepPage(
            [summary_of(row) for row in rows[:limit]],
            None if last is None else f"{last.submitted_at!r}~{last.sweep_id}",
        )

    async def counts(self) -> Mapping[SweepState, int]:
        """See `Control.counts`."""
        found: Counter[SweepState] = Counter()
        for status, count in (await self._journal.counts()).items():
            found[state_of(status)] += count
        return found

    async def sweep(self, sweep_id: str) -> SweepDetail:
        """See `Control.sweep`."""
        row = await self._journal.sweep(sweep_id)
        running = self.runner.running.get(sweep_id)
        if running is not None and running.watch.progress:
            return running_detail(row, running.watch, config_of(row).goal)
        return await detail_of(self._journal, row)

    async def candidates(self, sweep_id: str, *, offset: int, limit: int) -> CandidatePage:
        """See `Control.candidates`."""
        running = self.runner.running.get(sweep_id)
        if running is not None and running.watch.progress:
            records = running.watch.records
            return CandidatePage(
                total=len(records),
                offset=offset,
                candidates=records[offset : offset + limit],
            )
        row = await self._journal.sweep(sweep_id)
        return await candidate_page(Path(row.folder), offset=offset, limit=limit)

    async def artifact(self, sweep_id: str, candidate_id: str) -> bytes:
        """See `Control.artifact`."""
        row = await self._journal.sweep(sweep_id)
        return await artifact_of(Path(row.folder), candidate_id)

    async def cancel(self, sweep_id: str) -> SweepSummary:
        """See `Control.cancel`."""
        return await self._end(sweep_id, "cancel", from_states={*UNFINISHED, *_IDLE})

    async def pause(self, sweep_id: str) -> SweepSummary:
        """See `Control.pause`."""
        return await self._end(sweep_id, "pause", from_states=UNFINISHED)

    async def resume(self, sweep_id: str) -> SweepSummary:
        """See `Control.resume`."""
        async for row in self._looks(sweep_id):
            left_by_command = row.status == "running" and not row.managed and is_left(row)
            if row.status not in _IDLE and not left_by_command:
                raise WrongStateError(
                    f"sweep {sweep_id} is {row.status}: only one that was stopped can be resumed"
                )
            async with self._submitting:
                await self._check_queue()
                with suppress(SweepTakenError, WrongStateError):
                    await queue_idle_sweep(self._journal, row)
                    break
        self._announce_change()
        self.runner.retry(sweep_id)
        return await self._summary(sweep_id)

    async def remove(self, sweep_id: str) -> None:
        """See `Control.remove`."""
        async for row in self._looks(sweep_id):
            if row.status not in ENDED | _IDLE:
                raise WrongStateError(f"sweep {sweep_id} is {row.status}: cancel it first")
            with suppress(SweepTakenError):
                if await self._journal.remove(sweep_id, only_from=ENDED | _IDLE):
                    return

    async def has_more_events(self, sweep_id: str, *, after: int) -> bool:
        """See `Control.has_more_events`."""
        row = await self._journal.sweep(sweep_id)
        return after < row.events or row.status not in _OVER

    def events(self, sweep_id: str | None, *, after: int = 0) -> Events:
        """See `Control.events`."""
        return self._events_of_all() if sweep_id is None else self._events_of(sweep_id, after)

    async def _events_of_all(self) -> Events:
        recent = await self._journal.recent_events()
        known = {sweep_id: last for sweep_id, (_, last) in recent.numbers.items()}
        while True:
            change = self._change
            recent = await self._journal.recent_events(recent.at)
            for sweep_id, (first, last) in recent.numbers.items():
                # Taken out, so that the one that was silent longest is forgotten first.
                number = known.pop(sweep_id, first - 1)
                if last > number:
                    async for recorded in self._journal.events(sweep_id, number):
                        number = recorded.number
                        yield _read_event(sweep_id, recorded)
                known[sweep_id] = number
            for forgotten in list(known)[: len(known) - _MOST_KNOWN]:
                del known[forgotten]
            await asyncio.sleep(_SCAN_SECONDS)
            await set_or_late(change)

    async def troubles(self) -> Sequence[str]:
        """See `Control.troubles`."""
        troubles = self.runner.troubles
        if JOURNAL_AWAY not in troubles and not await self._write_probe.can_write():
            return ["the journal cannot be written", *troubles]
        return troubles

    async def _events_of(self, sweep_id: str, after: int) -> Events:
        while True:
            change = self._change
            row = await self._journal.sweep(sweep_id)
            async for recorded in self._journal.events(sweep_id, after):
                after = recorded.number
                yield _read_event(sweep_id, recorded)
            if after >= row.events and row.status in _OVER:
                return
            # The change may be one of another sweep, and there are many of them.
            await asyncio.sleep(_SCAN_SECONDS)
            await set_or_late(change)

    async def _end(
        self, sweep_id: str, action: str, *, from_states: Collection[str]
    ) -> SweepSummary:
        status = REQUESTED[action]
        async for row in self._looks(sweep_id):
            if row.status not in from_states or row.status == status:
                raise WrongStateError(f"sweep {sweep_id} is {row.status}")
            # A command answers no requests.
            is_a_commands = not row.managed and not self.runs(sweep_id)
            if is_a_commands and row.status == "running" and not is_left(row):
                raise WrongStateError(f"sweep {sweep_id} is run by {row.owner}, no daemon")
            if row.status != "running" or is_a_commands:
                with suppress(SweepTakenError, WrongStateError):
                    await stop_idle_sweep(self._journal, row, status)
                    self._announce_change()
                    break
            # It is done whatever becomes of us: others look at the requests for what they run, and
            # for what nobody runs any more.
            if not is_a_commands and await self._journal.request(sweep_id, action):
                running = self.runner.running.get(sweep_id)
                if running is not None:
                    running.stop.request_status(status)
                self.runner.wake()
                break
        return await self._summary(sweep_id)

    async def _looks(self, sweep_id: str) -> AsyncIterator[SweepRow]:
        """A sweep's row, read again for each attempt to change the sweep.

        Raises:
            SweepUnknownError: there is none of that name.
            WrongStateError: another process has kept it for too long.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + _LEASE_PATIENCE_SECONDS
        while True:
            row = await self._journal.sweep(sweep_id)
            yield row
            if clock() > until:
                raise WrongStateError(
                    f"sweep {sweep_id} is {row.status}, and {row.owner or 'somebody'} has it:"
                    " try again"
                )
            await asyncio.sleep(_SCAN_SECONDS)

    async def _known(self, sweep: NewSweep) -> SweepSummary | None:
        """The sweep that an earlier submission of that token has made.

        Raises:
            InputError: it was another submission.
        """
        if sweep.token is None:
            return None
        sweep_id = await self._journal.submitted_as(sweep.token)
        if sweep_id is None:
            return None
        row = await self._journal.sweep(sweep_id)
        asked = (sweep.config, sweep.priority, sweep.use_cache)
        if (row.config, row.priority, row.use_cache) != asked:
            raise InputError(f"the key of this submission is that of another one: sweep {sweep_id}")
        return summary_of(row)

    async def _check_queue(self) -> None:
        waiting = [row for row in await self._journal.sweeps(["queued"]) if row.managed]
        if len(waiting) >= self._settings.max_queued:
            raise QueueFullError(f"{len(waiting)} sweeps are queued, and no more are taken")

    async def _summary(self, sweep_id: str) -> SweepSummary:
        return summary_of(await self._journal.sweep(sweep_id))

    def _announce_change(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()
        self.on_change()


def _read_event(sweep_id: str, recorded: RecordedEvent) -> SweepEvent | UnreadableEvent:
    try:
        return SWEEP_EVENT.validate_json(recorded.body)
    except ValidationError:
        event = UnreadableEvent(sweep_id, recorded.number)
        log.warning("events.unreadable", sweep=sweep_id, number=recorded.number)
        return event


def _place(name: str) -> Place:
    """The place that `SweepPage.next` names.

    Raises:
        InputError: it is none.
    """
    time, separator, sweep_id = name.partition("~")
    with suppress(ValueError):
        if separator and math.isfinite(float(time)):
            return Place(float(time), sweep_id)
    raise InputError("before: no place in the list; take it from the Link of the page before")
