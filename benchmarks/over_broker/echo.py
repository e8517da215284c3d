"""A request there and an answer back, by aio-pika alone.

    python -m over_broker.echo <url> <queue of requests> <guarded or plain>

Quorum queues with the arguments of ours, persistent mandatory messages that are confirmed before
anything is acknowledged, acknowledgements by hand; and nothing else. A guarded echo has what else
is asked of us on top: connections of their own for publishing and consuming, so that a broker
which is short of memory still hands out and takes back, and a consumer with a prefetch of one for
each of its slots, so that a crash is not held against messages that wait.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from typing import Final, Self
from uuid import uuid4

import aio_pika
from aio_pika.abc import (
    AbstractChannel,
    AbstractConnection,
    AbstractIncomingMessage,
    DeliveryMode,
)

from over_broker.ending import when_told
from over_broker.load import BODY_BYTES
from spica_async.bus.port import QueueSpec
from spica_async.bus.rabbitmq.declaring import declare

MOST_IN_FLIGHT: Final = 64
_BODY: Final = bytes(BODY_BYTES)


class Style(StrEnum):
    """What an echo guarantees beyond confirms and acknowledgements: see above."""

    GUARDED = "guarded"
    PLAIN = "plain"


class Echo:
    """The asking side; the other one is the process that runs this module."""

    def __init__(self, publishing: AbstractChannel, requests: str, answers: str) -> None:
        self._publishing = publishing
        self._requests = requests
        self._answers = answers
        self._waiting: dict[str, asyncio.Future[None]] = {}

    @classmethod
    @asynccontextmanager
    async def open(
        cls, url: str, requests: QueueSpec, answers: QueueSpec, style: Style
    ) -> AsyncIterator[Self]:
        """Declare both queues and take answers while the context is open."""
        async with _connected(url, style) as (publishing, connection):
            for spec in (requests, answers):
                await declare(publishing, spec)
            echo = cls(publishing, requests.name, answers.name)
            await _consume(connection, answers.name, echo._take, prefetch=MOST_IN_FLIGHT)
            yield echo

    async def ask(self) -> None:
        """One round trip; no more than `MOST_IN_FLIGHT` at a time."""
        message_id = uuid4().hex
        answered = self._waiting[message_id] = asyncio.get_running_loop().create_future()
        await _send(self._publishing, self._requests, message_id, self._answers)
        await answered

    async def _take(self, incoming: AbstractIncomingMessage) -> None:
        assert incoming.message_id is not None
        self._waiting.pop(incoming.message_id).set_result(None)
        await incoming.ack()


async def _answer_all(url: str, requests: str, style: Style) -> None:
    ending = when_told()
    consumers = MOST_IN_FLIGHT if style is Style.GUARDED else 1
    async with _connected(url, style) as (publishing, connection):

        async def answer(incoming: AbstractIncomingMessage) -> None:
            assert incoming.reply_to is not None
            assert incoming.message_id is not None
            await _send(publishing, incoming.reply_to, incoming.message_id)
            await incoming.ack()

        for _ in range(consumers):
            await _consume(connection, requests, answer, prefetch=MOST_IN_FLIGHT // consumers)
        await ending.wait()


@asynccontextmanager
async def _connected(
    url: str, style: Style
) -> AsyncIterator[tuple[AbstractChannel, AbstractConnection]]:
    """A channel to publish on, and the connection to consume on."""
    async with AsyncExitStack() as stack:
        publishing = await stack.enter_async_context(await aio_pika.connect(url))
        consuming = publishing
        if style is Style.GUARDED:
            consuming = await stack.enter_async_context(await aio_pika.connect(url))
        yield await publishing.channel(publisher_confirms=True, on_return_raises=True), consuming


async def _consume(
    connection: AbstractConnection,
    queue: str,
    take: Callable[[AbstractIncomingMessage], Awaitable[None]],
    *,
    prefetch: int,
) -> None:
    channel = await connection.channel(publisher_confirms=False)
    await channel.set_qos(prefetch_count=prefetch)
    await (await channel.get_queue(queue, ensure=False)).consume(take)


async def _send(
    channel: AbstractChannel, queue: str, message_id: str, reply_to: str | None = None
) -> None:
    message = aio_pika.Message(
        _BODY,
        message_id=message_id,
        reply_to=reply_to,
        delivery_mode=DeliveryMode.PERSISTENT,
    )
    await channel.default_exchange.publish(message, routing_key=queue, mandatory=True)


if __name__ == "__main__":
    asyncio.run(_answer_all(sys.argv[1], sys.argv[2], Style(sys.argv[3])))
