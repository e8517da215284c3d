"""Channels to publish on, opened again when they were closed, and channels to consume on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Self

import structlog
from aio_pika.abc import AbstractChannel, DeliveryMode
from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

from spica_async.bus.port import Message
from spica_async.bus.rabbitmq.errors import (
    NotFoundError,
    OtherArgumentsError,
    TransientError,
    explanation,
    translated,
)
from spica_async.bus.rabbitmq.link import Link, close_channel

log = structlog.get_logger(__name__)


class ReusedChannel:
    """One channel, opened when it is first needed and again when it was closed.

    What it needs of the broker may be the reason why it was closed; `prepare` is called before it
    is opened again.
    """

    def __init__(
        self,
        link: Link,
        *,
        confirms: bool,
        prepare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._link = link
        self._confirms = confirms
        self._prepare = prepare
        self._channel: AbstractChannel | None = None
        self._opening = asyncio.Lock()

    async def get(self) -> AbstractChannel:
        """The channel, once there is a connection.

        Raises:
            TransientError: the connection was lost meanwhile.
        """
        if self._channel is not None and not self._channel.is_closed:
            return self._channel
        async with self._opening:
            if self._channel is None or self._channel.is_closed:
                if self._channel is not None and self._prepare is not None:
                    await self._prepare()
                self._channel = await self._link.open_channel(confirms=self._confirms)
                self._channel.close_callbacks.add(_log_end)
            return self._channel

    async def send(
        self,
        message: Message,
        *,
        exchange: str = "",
        routing_key: str = "",
        persistent: bool = False,
        mandatory: bool = False,
    ) -> None:
        """Publish a message, and wait for its confirmation if the channel has any.

        Raises:
            ReturnedError: it is mandatory, and in no queue.
            TransientError: it may or may not have gone through.
        """
        channel = await (await self.get()).get_underlay_channel()
        try:
            with translated():
                await channel.basic_publish(
                    message.body,
                    exchange=exchange,
                    routing_key=routing_key,
                    properties=properties(message, persistent=persistent),
                    mandatory=mandatory,
                    # For the socket to take it; a confirmation says more.
                    wait=not self._confirms,  # type: ignore[call-arg]  # missing from the abstract class alone
                )
        except (NotFoundError, OtherArgumentsError) as error:
            # What others did on the channel, or with the exchange that `prepare` declares.
            raise TransientError(str(error)) from error


def properties(message: Message, *, persistent: bool) -> Basic.Properties:
    """What goes with the body of a message."""
    return Basic.Properties(
        content_type="application/json",
        delivery_mode=DeliveryMode.PERSISTENT if persistent else DeliveryMode.NOT_PERSISTENT,
        message_id=message.message_id,
        message_type=message.type,
        reply_to=message.reply_to,
    )


def _log_end(_: object, error: BaseException | None) -> None:
    if error is not None:
        log.debug("bus.channel_closed", why=explanation(error))


class ConsumerChannel:
    """A channel with one consumer on it; what came by it can be settled until it ends.

    Attributes:
        unsettled: deliveries that came by it and are not settled yet.
    """

    def __init__(self, channel: AbstractChannel) -> None:
        self.unsettled = 0
        self.channel = channel
        self._ended = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def opened(cls, link: Link, on_end: Callable[[str], None]) -> AsyncIterator[Self]:
        """Open a channel, which is closed again if the context that sets it up fails.

        Args:
            link: the connection.
            on_end: called with the reason if it ends without being closed here.

        Raises:
            TransientError: the connection or the channel was lost meanwhile.
        """
        channel = await link.open_channel()
        opened = cls(channel)

        def end(why: str) -> None:
            if not opened.has_ended:
                opened._ended.set()
                on_end(why)

        try:
            with translated():
                underlay = await channel.get_underlay_channel()
                underlay.on_consumer_cancel_callbacks.add(lambda _: end("its queue was deleted"))
                channel.close_callbacks.add(
                    lambda _, error: end("closed" if error is None else explanation(error))
                )
                yield opened
        except BaseException:
            await opened.close()
            raise

    @property
    def has_ended(self) -> bool:
        """Whether it delivers and settles nothing any more."""
        return self._ended.is_set()

    async def consume(
        self,
        queue: str,
        deliver: Callable[[DeliveredMessage], Coroutine[Any, Any, None]],
        *,
        no_ack: bool = False,
    ) -> str:
        """Begin to consume a queue; returns the consumer's tag."""
        underlay = await self.channel.get_underlay_channel()
        consuming = await underlay.basic_consume(queue, deliver, no_ack=no_ack)
        return str(consuming.consumer_tag)

    async def ends_within(self, seconds: float) -> bool:
        """Wait until it has ended, or for `seconds` to twice that, at random.

        The consumers of a fleet began together and should not all do the same at once.
        """
        try:
            async with asyncio.timeout(seconds * random.uniform(1, 2)):  # noqa: S311 - no secret
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Close it, which gives back what is unsettled."""
        self._ended.set()
        await close_channel(self.channel)
