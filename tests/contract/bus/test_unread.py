"""What every bus does with what is told to a reader that does not keep up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from spica_async.bus.inbox import Inbox, Unread
from spica_async.bus.port import Event, Message

from .conftest import BusFactory

MANY_BYTES = 10**9


def message(number: int, size: int = 1) -> Message:
    return Message(b"x" * size, message_id=str(number), type="test.v1")


async def has_dropped(told: Inbox[Any], count: int) -> None:
    async with asyncio.timeout(60):
        while told.dropped < count:  # noqa: ASYNC110  # they come over a socket
            await asyncio.sleep(0.01)


async def ids(told: Inbox[Any], count: int) -> list[str]:
    async with asyncio.timeout(60):
        got = [await anext(told) for _ in range(count)]
    return [(one.message if isinstance(one, Event) else one).message_id for one in got]


@pytest.mark.parametrize(
    ("unread", "size"),
    [(Unread(messages=5, bytes=MANY_BYTES), 1), (Unread(messages=1000, bytes=550), 100)],
    ids=["by-number", "by-size"],
)
async def test_the_oldest_events_are_dropped_and_counted(
    bus_factory: BusFactory, unread: Unread, size: int
) -> None:
    async with bus_factory(unread=unread) as bus, bus.subscribe("#") as late:
        with capture_logs() as logs:
            for number in range(20):
                await bus.publish_event("worker.started", message(number, size))
            await has_dropped(late, 15)
        assert await ids(late, 5) == ["15", "16", "17", "18", "19"]
        # And it goes on as if nothing had been.
        await bus.publish_event("worker.started", message(20, size))
        assert await ids(late, 1) == ["20"]
        assert late.dropped == 15
    told = [entry["dropped"] for entry in logs if entry["event"] == "bus.unread_dropped"]
    assert told == [1, 2, 4, 8]


async def test_the_oldest_broadcasts_are_dropped_and_counted(bus_factory: BusFactory) -> None:
    unread = Unread(messages=5, bytes=MANY_BYTES)
    async with bus_factory(unread=unread) as bus, bus.listen() as late:
        for number in range(20):
            await bus.broadcast(message(number))
        await has_dropped(late, 15)
        assert await ids(late, 5) == ["15", "16", "17", "18", "19"]


async def test_a_single_one_may_be_larger(bus_factory: BusFactory) -> None:
    async with bus_factory(unread=Unread(messages=5, bytes=10)) as bus, bus.listen() as late:
        await bus.broadcast(message(1, 100))
        assert await ids(late, 1) == ["1"]
        assert late.dropped == 0
