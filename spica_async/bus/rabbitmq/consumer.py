"""A consumer that outlives channels, connections and even its queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Self

import structlog
from aiormq.abc import DeliveredMessage

from spica_async.bus.inbox import Inbox
from spica_async.bus.port import (
    Delivery,
    DeliveryLostError,
    QueueConflictError,
    QueueNotFoundError,
)
from spica_async.bus.rabbitmq.background import in_background
from spica_async.bus.rabbitmq.channels import ConsumerChannel
from spica_async.bus.rabbitmq.delivery import RabbitDelivery
from spica_async.bus.rabbitmq.errors import (
    NotFoundError,
    OtherArgumentsError,
    TransientError,
    patience,
    translated,
)
from spica_async.bus.rabbitmq.link import Link, retrying

log = structlog.get_logger(__name__)

_REFRESH_SECONDS: Final = 150.0
"""An idle consumer moves to a new channel after so long. RabbitMQ 3.10 forgets a consumer
whose queue is deleted and declared again at once, and hands it nothing more for ever."""


class RabbitConsumer:
    """Implements `spica_async.bus.port.Consumer` on one channel after the other.

    Args:
        link: the connection.
        queue: its name.
        prefetch: the most deliveries that may be unsettled at once.
    """

    def __init__(self, link: Link, queue: str, prefetch: int) -> None:
        self._link = link
        self._queue = queue
        self._prefetch = prefetch
        self._inbox: Inbox[RabbitDelivery] = Inbox()
        self._late: list[RabbitDelivery] = []
        self._stopped = asyncio.Event()
        self._channel: ConsumerChannel | None = None
        self._tag: str | None = None
        self._log = log.bind(queue=queue)

    @asynccontextmanager
    async def open(self, patience_seconds: float) -> AsyncIterator[Self]:
        """Consume while the context is open, which begins with the first channel.

        Raises:
            QueueNotFoundError: there is no such queue.
            QueueConflictError: it belongs to somebody alone.
            AccessRefusedError: this user may not read it.
            BusUnavailableError: there was no channel in `patience_seconds`.
        """
        try:
            async with patience(patience_seconds, f"consuming {self._queue}"):
                await retrying(TransientError)(self._consume)
        except NotFoundError as error:
            raise QueueNotFoundError(f"there is no queue {self._queue}") from error
        except OtherArgumentsError as error:
            raise QueueConflictError(f"queue {self._queue}: {error}") from error
        try:
            async with in_background(self._keep(), name=f"consumer of {self._queue}"):
                yield self
        finally:
            await self._drop_channel()
            self._inbox.close()

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        while (delivery := await anext(self._inbox)).is_lost:
            continue
        return delivery

    async def stop(self) -> None:
        """See `Consumer.stop`."""
        self._stopped.set()
        unread = self._inbox.close()
        tag, self._tag = self._tag, None
        if self._channel is not None and tag is not None:
            try:
                with translated():
                    underlay = await self._channel.channel.get_underlay_channel()
                    await underlay.basic_cancel(tag)
            except TransientError:
                return  # Everything is given back by that already.
        for delivery in [*unread, *self._late]:
            try:
                await delivery.nack(requeue=True)
            except DeliveryLostError:
                continue  # As above.

    async def _keep(self) -> None:
        """Go on with another channel whenever one has ended, for as long as messages are wanted."""
        again = retrying(TransientError, NotFoundError, on_failure=self._log_missing_queue)
        while self._channel is not None:
            refreshing = not await self._channel.ends_within(_REFRESH_SECONDS)
            if refreshing and (self._channel.unsettled or self._channel.has_ended):
                continue
            if self._stopped.is_set():
                return
            await self._drop_channel()
            try:
                await again(self._consume)
                if self._stopped.is_set():
                    # Meanwhile, when there was nothing to cancel yet.
                    await self._drop_channel()
                    return
            except OtherArgumentsError as error:
                self._inbox.close(QueueConflictError(f"queue {self._queue}: {error}"))
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, the reader must not wait
                self._inbox.close(error)
                return
            if not refreshing:
                self._log.info("bus.consuming_again")

    async def _consume(self) -> None:
        def log_end(why: str) -> None:
            self._log.warning("bus.consumer_lost", why=why)

        async with ConsumerChannel.opened(self._link, log_end) as channel:

            async def deliver(incoming: DeliveredMessage) -> None:
                if channel.has_ended:
                    return  # It is about to close, which gives the message back.
                delivery = RabbitDelivery(self._queue, channel, incoming)
                if self._stopped.is_set():
                    self._late.append(delivery)
                else:
                    self._inbox.put(delivery)

            await channel.channel.set_qos(prefetch_count=self._prefetch)
            # Before the answer: the first deliveries may come along with it.
            self._channel = channel
            self._tag = await channel.consume(self._queue, deliver)

    async def _drop_channel(self) -> None:
        channel, self._channel = self._channel, None
        self._tag = None
        if channel is not None:
            await channel.close()
        self._inbox.clear()
        self._late.clear()

    def _log_missing_queue(self, error: BaseException, attempt: int) -> None:
        if attempt == 1 and isinstance(error, NotFoundError):
            self._log.warning("bus.queue_missing", waiting="until it is declared again")
