"""What is told to everybody, read through a queue of one's own that lives with its connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar
from uuid import uuid4

import structlog
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage
from tenacity import AsyncRetrying, retry_if_exception_type

from spica_async.bus.inbox import Inbox
from spica_async.bus.port import BusError, BusUnavailableError
from spica_async.bus.rabbitmq.background import in_background
from spica_async.bus.rabbitmq.errors import NotFoundError, TransientError, explanation, translated
from spica_async.bus.rabbitmq.link import Link, close_channel, pauses

ItemT = TypeVar("ItemT")

log = structlog.get_logger(__name__)

_MOST_WAITING: Final = 10_000
"""Of a reader that does not keep up, the broker drops the oldest beyond these."""


@asynccontextmanager
async def subscribed(
    link: Link,
    *,
    exchange: str,
    pattern: str,
    queue_prefix: str,
    read: Callable[[AbstractIncomingMessage], ItemT],
    patience_seconds: float,
) -> AsyncIterator[AsyncIterator[ItemT]]:
    """Receive from an exchange while the context is open, again after each loss of the connection.

    Raises:
        AccessRefusedError: this user may not do that.
        BusUnavailableError: there was no channel in `patience_seconds`.
    """
    subscription = _Subscription(link, exchange, pattern, queue_prefix, read)
    try:
        async with asyncio.timeout(patience_seconds):
            await subscription.attach()
    except TimeoutError as error:
        raise BusUnavailableError(
            f"listening to {exchange}: the broker did not answer for {patience_seconds:g} s"
        ) from error
    try:
        async with in_background(subscription.keep(), name=f"subscription to {exchange}"):
            yield subscription.inbox
    finally:
        await subscription.close()


class _Subscription(Generic[ItemT]):
    def __init__(
        self,
        link: Link,
        exchange: str,
        pattern: str,
        queue_prefix: str,
        read: Callable[[AbstractIncomingMessage], ItemT],
    ) -> None:
        self.inbox: Inbox[ItemT] = Inbox()
        self._link = link
        self._exchange = exchange
        self._pattern = pattern
        self._queue_prefix = queue_prefix
        self._read = read
        self._channel: AbstractChannel | None = None
        self._ended = asyncio.Event()
        self._closing = False

    async def attach(self) -> None:
        attempts = AsyncRetrying(
            wait=pauses(), retry=retry_if_exception_type((TransientError, NotFoundError))
        )
        await attempts(self._attach)

    async def keep(self) -> None:
        while True:
            await self._ended.wait()
            try:
                await self.attach()
            except BusError as error:
                self.inbox.close(error)
                return

    async def close(self) -> None:
        self._closing = True
        self.inbox.close()
        if self._channel is not None:
            await close_channel(self._channel)

    async def _attach(self) -> None:
        channel = await self._link.open_channel()
        self._ended.clear()
        try:
            with translated():
                queue = await channel.declare_queue(
                    # A new name each time: the broker may not have noticed the end of the old one.
                    f"{self._queue_prefix}.{uuid4().hex[:12]}",
                    exclusive=True,
                    auto_delete=True,
                    arguments={"x-max-length": _MOST_WAITING},
                )
                await queue.bind(self._exchange, self._pattern)
                underlay = await channel.get_underlay_channel()
                underlay.on_consumer_cancel_callbacks.add(lambda _: self._ended.set())
                channel.close_callbacks.add(lambda _, error: self._end(error))
                await queue.consume(self._deliver, no_ack=True)
        except BaseException:
            await close_channel(channel)
            raise
        self._channel = channel

    async def _deliver(self, incoming: AbstractIncomingMessage) -> None:
        self.inbox.put(self._read(incoming))

    def _end(self, error: BaseException | None) -> None:
        if self._closing:
            return
        why = "closed" if error is None else explanation(error)
        log.info("bus.subscription_lost", exchange=self._exchange, why=why)
        self._ended.set()
