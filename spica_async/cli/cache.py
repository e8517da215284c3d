"""`spica-async cache stats | prune`: what later sweeps need not measure again."""

from __future__ import annotations

import asyncio
import json as documents
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spica_async.cli.options import AsJson
from spica_async.cli.prune import check_days
from spica_async.errors import InputError, SpicaError

if TYPE_CHECKING:
    from spica_async.evaluate.cache.port import CacheStats
    from spica_async.evaluate.cache.sql import SqlResultCache

_DAY_SECONDS: Final = 24 * 3600.0

Journal = Annotated[
    str | None,
    typer.Option(
        envvar="SPICA_JOURNAL",
        help="a journal on a PostgreSQL server keeps the results, too; with any other they are in"
        " the user's cache; default: the variable SPICA_JOURNAL",
        metavar="URL",
        show_envvar=False,
    ),
]


def stats(*, journal: Journal = None, json: AsJson = False) -> None:
    """Show how much is kept, and how often it saved a replay."""
    from spica_async.evaluate.cache.opening import cache_place
    from spica_async.evaluate.cache.port import CacheStats
    from spica_async.storage.address import read_address

    place = cache_place(journal or None)

    async def look() -> CacheStats:
        async with _opened(place) as cache:
            return CacheStats() if cache is None else await cache.stats()

    found, name = asyncio.run(look()), str(read_address(place))
    if json:
        typer.echo(documents.dumps({"cache": name, **asdict(found)}, indent=2))
    else:
        typer.echo(_text(name, found))


def prune(
    *,
    older_than: Annotated[
        float | None,
        typer.Option(min=0, help="remove what was not used for so long", metavar="DAYS"),
    ] = None,
    max_entries: Annotated[
        int | None, typer.Option(min=0, help="keep the latest used ones alone", metavar="N")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="keep nothing")] = False,
    journal: Journal = None,
) -> None:
    """Remove what was not used for longest; it is measured again when it is asked for."""
    from spica_async.evaluate.cache.opening import cache_place

    if older_than is None and max_entries is None and not everything:
        raise InputError("cache prune: say what to remove: --older-than, --max-entries or --all")
    check_days("--older-than", older_than)
    place = cache_place(journal or None)

    async def remove() -> int:
        async with _opened(place) as cache:
            if cache is None:
                return 0
            return await cache.prune(
                older_than_seconds=None if older_than is None else older_than * _DAY_SECONDS,
                max_entries=max_entries,
                everything=everything,
            )

    removed = asyncio.run(remove())
    typer.echo(f"removed {removed} {'entry' if removed == 1 else 'entries'}")


@asynccontextmanager
async def _opened(place: str | Path) -> AsyncIterator[SqlResultCache | None]:
    """The cache, if there is one; unlike that of a sweep, it raises what is wrong with it."""
    from spica_async.cli.logs import log_warnings_to_stderr
    from spica_async.evaluate.cache.sql import SqlResultCache
    from spica_async.storage.address import identity
    from spica_async.storage.errors import StorageDamagedError, StorageError

    log_warnings_to_stderr()
    if isinstance(place, Path) and identity(place) is None:
        yield None
        return
    try:
        async with SqlResultCache.open(place) as cache:
            yield cache
    except StorageError as error:
        message = str(error)
        if isinstance(error, StorageDamagedError) and isinstance(place, Path):
            message += "; the next sweep sets it aside and begins a new one"
        raise SpicaError(message) from error


def _text(name: str, found: CacheStats) -> str:
    rows = {
        "entries": f"{found.entries:,}",
        "of these noisy": f"{found.noisy:,}",
        "measurements kept": f"{found.measurements:,}, {found.bytes / 2**20:.1f} MiB",
        "replays saved": f"{found.hits:,}",
        "oldest use": _time(found.oldest_use),
        "newest use": _time(found.newest_use),
    }
    lines = [f"result cache {name}", *(f"  {what:<18} {value}" for what, value in rows.items())]
    return "\n".join(lines)


def _time(at: float | None) -> str:
    return "-" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
