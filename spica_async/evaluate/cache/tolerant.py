"""A cache that costs a sweep nothing when it fails, but the replays that it would have saved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import structlog

from schemas.messages import Measurement
from spica_async.evaluate.cache.files import set_aside
from spica_async.evaluate.cache.port import Cached
from spica_async.evaluate.cache.sql import BUSY_SECONDS, SqlResultCache
from spica_async.storage.address import FileAddress, Identity, identity, read_address
from spica_async.storage.errors import StorageDamagedError

AnswerT = TypeVar("AnswerT")

log = structlog.get_logger(__name__)

_NEVER: Final = float("-inf")


@dataclass(eq=False)
class _Store:
    """A cache that was opened, and how many verbs are under way in it.

    Attributes:
        cache: That may fail.
        file: Which one it was opened as; None for a server's.
        closing: Closes it.
        users: Verbs under way.
        is_given_up: Whether the last of them closes it.
    """

    cache: SqlResultCache
    file: Identity | None
    closing: AsyncExitStack
    users: int = 0
    is_given_up: bool = False


class TolerantCache:
    """Answers and keeps what it can; see `ResultCache`.

    Args:
        where: See `read_address`.
        retry_seconds: How long it is left alone once it has failed.

    Raises:
        InputError: if `where` names no place.
    """

    def __init__(self, where: str | Path, *, retry_seconds: float) -> None:
        address = read_address(where)
        self._name = str(address)
        self._path = address.path if isinstance(address, FileAddress) else None
        self._where = where
        self._retry_seconds = retry_seconds
        self._retry_at = _NEVER
        self._store: _Store | None = None
        self._one_opens = asyncio.Lock()
        self._has_warned = False

    async def open(self) -> None:
        """Open it, so that the first question needs not wait for that."""

        async def nothing(_cache: SqlResultCache) -> None:
            pass

        await self._try(nothing, None)

    async def close(self) -> None:
        """Write what there is to be written, and close it."""
        if self._store is not None:
            await self._try(lambda cache: cache.write_uses(), None)
        if self._store is not None:
            await self._give_up(self._store)

    async def get(self, key: str) -> Cached | None:
        """See `ResultCache.get`."""
        return await self._try(lambda cache: cache.get(key), None)

    async def put(self, key: str, measurement: Measurement, *, worker: str, noisy: bool) -> None:
        """See `ResultCache.put`."""
        await self._try(lambda cache: cache.put(key, measurement, worker=worker, noisy=noisy), None)

    async def _try(
        self, ask: Callable[[SqlResultCache], Awaitable[AnswerT]], otherwise: AnswerT
    ) -> AnswerT:
        clock = asyncio.get_running_loop().time
        if clock() < self._retry_at:
            return otherwise
        store = None
        try:
            store = await self._opened()
            store.users += 1
            try:
                return await ask(store.cache)
            finally:
                store.users -= 1
                await self._close_if_unused(store)
        except Exception as error:  # noqa: BLE001  # no sweep ends for want of its cache
            # Before anything is awaited, so that those who come meanwhile do not run into it, too.
            self._retry_at = clock() + self._retry_seconds
            if not self._has_warned:
                self._has_warned = True
                log.warning("result_cache.failed", place=self._name, error=str(error))
            await self._recover(store, error)
            return otherwise

    async def _opened(self) -> _Store:
        async with self._one_opens:
            if self._store is None:
                which = self._identity()
                try:
                    self._store = await self._open()
                except StorageDamagedError as error:
                    if self._path is None:
                        raise
                    await self._set_aside(self._path, which, error)
                    self._store = await self._open()
            return self._store

    async def _open(self) -> _Store:
        closing = AsyncExitStack()
        cache = await closing.enter_async_context(SqlResultCache.open(self._where))
        return _Store(cache, self._identity(), closing)

    async def _recover(self, store: _Store | None, error: Exception) -> None:
        """Do with a file that is lost what lets the next who asks begin a new one."""
        if store is None or self._path is None or store.is_given_up:
            return
        is_damaged = isinstance(error, StorageDamagedError)
        if not is_damaged and store.file == self._identity():
            return
        try:
            await self._give_up(store)
            if is_damaged:
                await self._set_aside(self._path, store.file, error)
        except Exception as another:  # noqa: BLE001  # as above
            log.warning("result_cache.not_recovered", place=self._name, error=str(another))

    async def _set_aside(self, path: Path, which: Identity | None, error: Exception) -> None:
        log.warning("result_cache.damaged", place=self._name, error=str(error))
        await set_aside(path, which, BUSY_SECONDS)

    async def _give_up(self, store: _Store) -> None:
        store.is_given_up = True
        if self._store is store:
            self._store = None
        await self._close_if_unused(store)

    async def _close_if_unused(self, store: _Store) -> None:
        if store.is_given_up and store.users == 0:
            await store.closing.aclose()

    def _identity(self) -> Identity | None:
        return None if self._path is None else identity(self._path)
