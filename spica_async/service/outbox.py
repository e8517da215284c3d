"""Publishes the events of sweeps on the bus: each at least once, those of a sweep in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from spica_async.bus.port import Bus, BusError, Message, MessageTooLargeError
from spica_async.journal.leases import this_owner
from spica_async.journal.port import Journal, Lease, RecordedEvent, SweepUnknownError
from spica_async.search.events.pending import PendingEvents
from spica_async.storage.errors import StorageError

LOOK_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 30.0
_PUBLISHING_SECONDS: Final = 30.0
_LAST_SECONDS: Final = 10.0
_AT_ONCE: Final = 50
"""Events between one note of what was published and the next; after a crash so many come again."""

log = structlog.get_logger(__name__)


@asynccontextmanager
async def outbox_of(
    sweep_id: str, events: PendingEvents, journal: Journal, bus: Bus
) -> AsyncIterator[Outbox]:
    """Publish the events of one sweep of ours that are left when the context ends.

    Meanwhile the outbox publishes them as they come, while it is `running`. What cannot be
    published then stays in the journal for when the sweep is resumed.
    """
    outbox = Outbox(journal, bus, lambda _: True, only=sweep_id)
    events.on_change = outbox.wake
    try:
        yield outbox
    except Exception:
        await outbox.publish_last()
        raise
    await outbox.publish_last()


@dataclass(slots=True)
class Outbox:
    """Publishes the events of the journal that were not published yet.

    An event is noted as published once the bus has answered for it. While the bus or the journal is
    away it waits; nothing is lost, and a subscriber knows what comes again by its id.

    Attributes:
        journal: the journal that has the events.
        bus: the bus to publish on, with the kind of each event as its topic.
        is_ours: whether we run a sweep. Another daemon that runs one publishes its events itself.
        only: the one sweep to publish events of; none: all those that daemons may run.
    """

    journal: Journal
    bus: Bus
    is_ours: Callable[[str], bool] = lambda _: False
    only: str | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def wake(self) -> None:
        """There is something new."""
        self._changed.set()

    async def run(self) -> None:
        """Publish for good."""
        pause = 0.0
        while True:
            self._changed.clear()
            try:
                await self.publish_all()
                pause = 0.0
            except (BusError, StorageError) as error:
                if pause == 0.0:
                    log.warning("outbox.waits", error=str(error))
                pause = min(max(LOOK_SECONDS, 2 * pause), _LONGEST_PAUSE_SECONDS)
                await asyncio.sleep(pause)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._changed.wait()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Publish while the context is open."""
        async with asyncio.TaskGroup() as group:
            publishing = group.create_task(self.run())
            yield
            publishing.cancel()

    async def publish_last(self) -> None:
        """Publish what there is, within a bounded time and as far as it goes."""
        try:
            async with asyncio.timeout(_LAST_SECONDS):
                await self.publish_all()
        except (BusError, StorageError, TimeoutError) as error:
            log.warning("outbox.events_left", error=str(error) or "it took too long")

    async def publish_all(self) -> None:
        """Publish what there is now.

        Raises:
            BusError: the bus is away.
            StorageError: the journal is.
        """
        for sweep_id in [self.only] if self.only else await self.journal.unpublished():
            with suppress(SweepUnknownError):  # It was removed meanwhile.
                await self._publish_unless_another_does(sweep_id)

    async def _publish_unless_another_does(self, sweep_id: str) -> None:
        """Publish the events of a sweep that is ours, or nobody's and no other daemon is at it."""
        if self.is_ours(sweep_id):
            await self._publish(sweep_id)
            return
        row = await self.journal.sweep(sweep_id)
        lease = Lease(this_owner(), _PUBLISHING_SECONDS)
        if row.lease_seconds > 0 or not await self.journal.begin_publishing(sweep_id, lease):
            return
        try:
            await self._publish(sweep_id)
        finally:
            await self.journal.end_publishing(sweep_id, lease.owner)

    async def _publish(self, sweep_id: str) -> None:
        # Each begins behind what is noted, so that two at once publish some twice, and in order.
        last = noted = (await self.journal.sweep(sweep_id)).published
        try:
            async for recorded in self.journal.events(sweep_id, last):
                await self._publish_one(sweep_id, recorded)
                last = recorded.number
                if last - noted >= _AT_ONCE:
                    await self.journal.mark_published(sweep_id, last)
                    noted = last
        finally:
            if last > noted:
                await self.journal.mark_published(sweep_id, last)

    async def _publish_one(self, sweep_id: str, recorded: RecordedEvent) -> None:
        try:
            # As it is written, whichever version has written it.
            event = json.loads(recorded.body)
            id_, type_, topic = event["id"], event["type"], event["data"]["kind"]
        except (ValueError, LookupError, TypeError):
            log.exception("outbox.unreadable", sweep=sweep_id, number=recorded.number)
            return
        message = Message(recorded.body.encode(), id_, type_)
        try:
            await self.bus.publish_event(topic, message, confirmed=True)
        except MessageTooLargeError as error:
            # A subscriber sees by the numbers that it lacks one, and can ask for it.
            log.warning("outbox.event_too_large", event_id=id_, error=str(error))
