"""Channels that are used again and again, and what must not happen at once on one of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog
from aio_pika.abc import AbstractChannel

from spica_async.bus.rabbitmq.errors import explanation
from spica_async.bus.rabbitmq.link import Link

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


def _log_end(_: object, error: BaseException | None) -> None:
    if error is not None:
        log.debug("bus.channel_closed", why=explanation(error))


class KeyedLocks:
    """One lock per key, for as long as somebody holds or wants it."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def held(self, key: str) -> AsyncIterator[None]:
        """Hold the key's lock while the context is open."""
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)
