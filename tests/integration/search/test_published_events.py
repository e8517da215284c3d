"""What others are told on the bus of a sweep that a command runs."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs
from support.broker import VirtualHost
from support.jobs import new, resumed, run
from support.subscribers import assert_whole, bus_at, read, subscribed

from schemas.lifecycle import SweepFinished
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import BusUnavailableError, Message
from spica_async.journal.opening import JournalOptions, opened
from spica_async.service.jobs import Job


class DeafBus(MemoryBus):
    """Takes no events but those of workers."""

    async def publish_event(self, topic: str, message: Message, *, confirmed: bool = False) -> None:
        if confirmed:
            raise BusUnavailableError("nobody is there")
        await super().publish_event(topic, message, confirmed=confirmed)


async def published(job: Job, options: JournalOptions) -> tuple[int, int]:
    """How many events others have been told, and how many there are."""
    async with opened(options) as journal:
        row = await journal.sweep(job.sweep_id)
        return row.published, row.events


async def test_subscribers_hear_of_a_sweep_and_of_its_resumption(
    tmp_path: Path, options: JournalOptions, broker_vhost: VirtualHost
) -> None:
    url = broker_vhost.url
    job = new(options, tmp_path)
    async with subscribed(url) as queue, bus_at(url, "run") as bus:
        first = await run(job, bus, after=3)
        told, stored = await published(job, options)
        assert told == stored > 3
        second = await run(resumed(job, options, tmp_path), bus)
        events = await read(queue)
    assert (first.status, second.status) == ("interrupted", "completed")
    assert_whole(events)
    assert [event.data.kind for event in events[:2]] == ["sweep.submitted", "branch.enumerated"]
    assert isinstance(events[-1].data, SweepFinished)
    # The one that was on its way when the first run was stopped may have come again.
    assert len({event.id for event in events}) == (await published(job, options))[1]


async def test_what_nobody_could_be_told_is_told_when_the_sweep_is_resumed(
    tmp_path: Path, options: JournalOptions
) -> None:
    job = new(options, tmp_path)
    with capture_logs() as logs:
        result = await run(job, DeafBus())
    assert result.status == "completed"
    assert "outbox.events_left" in [line["event"] for line in logs]
    told, stored = await published(job, options)
    assert told == 0

    again = MemoryBus()
    async with again.subscribe("#") as events:
        await run(resumed(job, options, tmp_path), again)
        heard = [await anext(events) for _ in range(stored)]
    assert [event.topic for event in heard][:: stored - 1] == ["sweep.submitted", "sweep.finished"]
    assert await published(job, options) == (stored, stored)
