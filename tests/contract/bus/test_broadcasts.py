"""What every bus does with words to everybody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from schemas.envelope import MAX_MESSAGE_BYTES
from spica_async.bus.port import Bus, Message, MessageTooLargeError


def message(name: str) -> Message:
    return Message(body=name.encode(), message_id=name, type="test.v1")


async def take(messages: AsyncIterator[Message], count: int) -> list[str]:
    async with asyncio.timeout(60):
        return [(await anext(messages)).message_id for _ in range(count)]


async def test_nobody_listening_is_no_error(bus: Bus) -> None:
    await bus.broadcast(message("before"))
    async with bus.listen() as messages:
        await bus.broadcast(message("after"))
        assert await take(messages, 1) == ["after"]


async def test_everybody_hears_everything_in_order(bus: Bus) -> None:
    sent = [str(number) for number in range(50)]
    async with bus.listen() as one, bus.listen() as two:
        for name in sent:
            await bus.broadcast(message(name))
        assert await take(one, 50) == sent
        assert await take(two, 50) == sent


async def test_a_broadcast_is_no_event(bus: Bus) -> None:
    async with bus.subscribe("#") as events, bus.listen() as messages:
        await bus.broadcast(message("told"))
        await bus.publish_event("worker.left", message("event"))
        assert await take(messages, 1) == ["told"]
        async with asyncio.timeout(60):
            assert (await anext(events)).message.message_id == "event"


async def test_the_iteration_ends_with_the_context(bus: Bus) -> None:
    async with bus.listen() as messages:
        pass
    with pytest.raises(StopAsyncIteration):
        await anext(messages)


async def test_a_broadcast_is_bounded_like_a_message(bus: Bus) -> None:
    too_large = Message(b"x" * (MAX_MESSAGE_BYTES + 1), message_id="toolarge", type="test.v1")
    with pytest.raises(MessageTooLargeError, match="toolarge"):
        await bus.broadcast(too_large)
