"""Events and broadcasts, read through a queue of this process alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Generic, TypeVar
from uuid import uuid4

import structlog
from aiormq.abc import DeliveredMessage

from spica_async.bus.inbox import Inbox, Unread
from spica_async.bus.rabbitmq.background import in_background
from spica_async.bus.rabbitmq.channels import ConsumerChannel
from spica_async.bus.rabbitmq.errors import (
    NotFoundError,
    TransientError,
    patience,
)
from spica_async.bus.rabbitmq.link import Link, retrying

ItemT = TypeVar("ItemT")

log = structlog.get_logger(__name__)

_QUIET_SECONDS: Final = 300.0
"""After so long without a word the queue is bound anew: an exchange that was deleted and declared
again has forgotten who listened."""


class RabbitSubscription(Generic[ItemT]):
    """Receives from an exchange, again after each loss of the connection.

    Args:
        link: the connection.
        exchange: its name.
        pattern: of the topics that are received; empty for an exchange without topics.
        queue_prefix: how the names of its queues begin.
        read: turns what came into what is handed out.
        unread: how much may wait to be read.
    """

    def __init__(
        self,
        link: Link,
        *,
        exchange: str,
        pattern: str = "",
        queue_prefix: str,
        read: Callable[[DeliveredMessage], ItemT],
        unread: Unread,
    ) -> None:
        self._inbox: Inbox[ItemT] = Inbox(unread, name=exchange)
        self._unread = unread
        self._link = link
        self._exchange = exchange
        self._pattern = pattern
        self._queue_prefix = queue_prefix
        self._read = read
        self._channel: ConsumerChannel | None = None
        self._heard_at = 0.0

    @asynccontextmanager
    async def open(self, patience_seconds: float) -> AsyncIterator[Inbox[ItemT]]:
        """Receive while the context is open, which begins with the first channel.

        Raises:
            AccessRefusedError: this user may not do that.
            BusUnavailableError: there was no channel in `patience_seconds`.
        """
        async with patience(patience_seconds, f"listening to {self._exchange}"):
            await self._attach_persistently()
        try:
            async with in_background(self._keep(), name=f"subscription to {self._exchange}"):
                yield self._inbox
        finally:
            self._inbox.close()
            await self._leave_channel()

    async def _attach_persistently(self) -> None:
        await retrying(TransientError, NotFoundError)(self._attach)

    async def _keep(self) -> None:
        while True:
            await self._wait_for_reason()
            try:
                await self._attach_persistently()
            except Exception as error:  # noqa: BLE001 - whatever it is, the reader must not wait
                self._inbox.close(error)
                return

    async def _wait_for_reason(self) -> None:
        """Wait until the channel has ended, or nothing was heard for suspiciously long."""
        time = asyncio.get_running_loop().time
        while self._channel is not None and not await self._channel.ends_within(_QUIET_SECONDS):
            if time() - self._heard_at >= _QUIET_SECONDS:
                return

    async def _attach(self) -> None:
        def log_end(why: str) -> None:
            log.info("bus.subscription_lost", exchange=self._exchange, why=why)

        async with ConsumerChannel.opened(self._link, log_end) as channel:
            queue = await channel.channel.declare_queue(
                # A new name each time: the broker may not have noticed the end of the old one.
                f"{self._queue_prefix}.{uuid4().hex[:12]}",
                exclusive=True,
                auto_delete=True,
                # For while we take nothing at all. What we have taken is bounded by the inbox:
                # without acknowledgements the broker counts it no more.
                arguments={
                    "x-max-length": self._unread.messages,
                    "x-max-length-bytes": self._unread.bytes,
                },
            )
            await queue.bind(self._exchange, self._pattern)
            await channel.consume(queue.name, self._deliver, no_ack=True)
        await self._leave_channel()
        self._channel = channel
        self._heard_at = asyncio.get_running_loop().time()

    async def _leave_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _deliver(self, incoming: DeliveredMessage) -> None:
        self._heard_at = asyncio.get_running_loop().time()
        self._inbox.put(self._read(incoming), len(incoming.body))
