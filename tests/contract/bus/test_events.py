"""What every bus does with events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from schemas.envelope import MAX_MESSAGE_BYTES
from spica_async.bus.port import Bus, Event, Message, MessageTooLargeError


def message(name: str) -> Message:
    return Message(body=name.encode(), message_id=name, type="test.v1")


async def take(events: AsyncIterator[Event], count: int) -> list[tuple[str, str]]:
    async with asyncio.timeout(60):
        got = [await anext(events) for _ in range(count)]
    return [(event.topic, event.message.message_id) for event in got]


async def test_nobody_listening_is_no_error(bus: Bus) -> None:
    await bus.publish_event("worker.started", message("before"))
    async with bus.subscribe("#") as events:
        await bus.publish_event("worker.started", message("after"))
        assert await take(events, 1) == [("worker.started", "after")]


async def test_every_subscriber_gets_every_event_in_order(bus: Bus) -> None:
    sent = [("worker.started", str(number)) for number in range(200)]
    async with bus.subscribe("worker.*") as one, bus.subscribe("#") as two:
        for topic, name in sent:
            await bus.publish_event(topic, message(name))
        assert await take(one, 200) == sent
        assert await take(two, 200) == sent


@pytest.mark.parametrize(
    ("pattern", "received"),
    [
        ("worker.evaluation.started", ["worker.evaluation.started"]),
        ("worker.*", ["worker.lost"]),
        ("worker.#", ["worker", "worker.lost", "worker.evaluation.started"]),
        ("*.evaluation.*", ["worker.evaluation.started", "sweep.evaluation.ended"]),
        ("#.started", ["worker.evaluation.started"]),
        ("*", ["worker"]),
        ("#.evaluation.#", ["worker.evaluation.started", "sweep.evaluation.ended"]),
    ],
)
async def test_patterns(bus: Bus, pattern: str, received: list[str]) -> None:
    topics = ["worker", "worker.lost", "worker.evaluation.started", "sweep.evaluation.ended"]
    async with bus.subscribe(pattern) as events, bus.subscribe("the.end") as end:
        for topic in [*topics, "the.end"]:
            await bus.publish_event(topic, message(topic))
        await take(end, 1)
        assert await take(events, len(received)) == [(topic, topic) for topic in received]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(events)


async def test_the_iteration_ends_with_the_context(bus: Bus) -> None:
    async def read_all(events: AsyncIterator[Event]) -> list[Event]:
        return [event async for event in events]

    async with asyncio.TaskGroup() as group:
        async with bus.subscribe("#") as events:
            waiting = group.create_task(read_all(events))
            await asyncio.sleep(0)
        await bus.publish_event("worker.started", message("late"))
    assert waiting.result() == []


async def test_an_event_is_bounded_like_a_message(bus: Bus) -> None:
    too_large = Message(b"x" * (MAX_MESSAGE_BYTES + 1), message_id="toolarge", type="test.v1")
    async with bus.subscribe("#") as events:
        with pytest.raises(MessageTooLargeError, match="toolarge"):
            await bus.publish_event("worker.started", too_large)
        await bus.publish_event("worker.started", message("next"))
        assert await take(events, 1) == [("worker.started", "next")]
