"""Where results are kept, and the cache of them that a sweep asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from spica_async.evaluate.cache.port import ResultCache
from spica_async.places import user_cache_folder
from spica_async.storage.address import ServerAddress, read_address

RETRY_SECONDS: Final = 30.0
"""How long a cache is left alone once it has failed."""


def user_cache_file() -> Path:
    """The file in the user's cache; may be removed whenever no sweep runs."""
    return user_cache_folder() / "results.sqlite3"


def cache_place(journal: str | Path | None) -> str | Path:
    """Where results belong that are measured for sweeps of a journal.

    A server that keeps the journal keeps them, too, for all who share it. Otherwise they are in
    the user's cache and not beside a journal's file, for they are of use to other journals.

    Args:
        journal: URL or path of the journal; see `read_address`.

    Raises:
        InputError: if that names none.
    """
    if journal is not None and isinstance(read_address(journal, holds="journal"), ServerAddress):
        return journal
    return user_cache_file()


@asynccontextmanager
async def opened(
    where: str | Path | None = None, *, retry_seconds: float = RETRY_SECONDS
) -> AsyncIterator[ResultCache]:
    """A cache that never fails: what it cannot answer or keep, it has not got.

    A file that is damaged is set aside and begun anew. Whatever else goes wrong is logged, the
    first time, and then the cache is left alone for a while.

    Args:
        where: A file's path, or a URL; see `cache_place`. None: the user's cache file.
        retry_seconds: How long it is left alone.

    Raises:
        InputError: if `where` names no place at all.
    """
    from spica_async.evaluate.cache.tolerant import (  # noqa: PLC0415  # loads SQLAlchemy
        TolerantCache,
    )

    cache = TolerantCache(where or user_cache_file(), retry_seconds=retry_seconds)
    await cache.open()
    try:
        yield cache
    finally:
        await cache.close()
