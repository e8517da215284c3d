"""`spica-async cache stats | prune`: what later sweeps need not measure again."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from spica_async.cli.logs import log_warnings_to_stderr
from spica_async.errors import InputError, SpicaError
from spica_async.evaluate.cache import CacheStats, NoCache, ResultCache, cache_place
from spica_async.evaluate.cache.files import identity
from spica_async.journal import JournalDamagedError, JournalError
from spica_async.journal.opening import URL_VARIABLE
from spica_async.storage.address import read_address

_DAY_SECONDS = 24 * 3600.0


def stats_command(journal: str | None, *, as_json: bool) -> None:
    """Print what the cache holds.

    Args:
        journal: URL of the journal whose sweeps it serves; None: as the environment has it.
        as_json: print a document in place of lines.

    Raises:
        InputError: that names no journal.
        SpicaError: the cache cannot be read.
    """
    log_warnings_to_stderr()
    place = _place(journal)

    async def look() -> CacheStats:
        async with _opened(place) as cache:
            return await cache.stats()

    stats, name = asyncio.run(look()), str(read_address(place))
    if as_json:
        sys.stdout.write(json.dumps({"cache": name, **asdict(stats)}, indent=2) + "\n")
    else:
        sys.stdout.write(_lines(name, stats))


def prune_command(
    journal: str | None,
    *,
    older_than_days: float | None,
    max_entries: int | None,
    everything: bool,
) -> None:
    """Remove entries, by when they were used last, and print how many.

    Args:
        journal: as in `stats_command`.
        older_than_days: remove those that were not used for so many days.
        max_entries: keep at most so many.
        everything: keep none.

    Raises:
        InputError: `journal` names none, or nothing says what to remove.
        SpicaError: the cache cannot be changed.
    """
    if older_than_days is None and max_entries is None and not everything:
        raise InputError("cache prune: say what to remove: --older-than, --max-entries or --all")
    if older_than_days is not None and not math.isfinite(older_than_days):
        raise InputError("--older-than: give a number of days")
    log_warnings_to_stderr()
    place = _place(journal)

    async def prune() -> int:
        async with _opened(place) as cache:
            return await cache.prune(
                older_than_seconds=(
                    None if older_than_days is None else older_than_days * _DAY_SECONDS
                ),
                max_entries=max_entries,
                everything=everything,
            )

    removed = asyncio.run(prune())
    sys.stdout.write(f"removed {removed} {'entry' if removed == 1 else 'entries'}\n")


def _place(journal: str | None) -> str | Path:
    return cache_place(journal or os.environ.get(URL_VARIABLE) or None)


@asynccontextmanager
async def _opened(place: str | Path) -> AsyncIterator[ResultCache]:
    """The cache, which here is to tell what is wrong with it."""
    if isinstance(place, Path) and identity(place) is None:
        yield NoCache()
        return
    from spica_async.evaluate.cache.sql import SqlResultCache  # noqa: PLC0415  # loads SQLAlchemy

    try:
        async with SqlResultCache.open(place) as cache:
            yield cache
    except JournalError as error:
        told = f"result cache {str(error).removeprefix('journal ')}"
        if isinstance(error, JournalDamagedError) and isinstance(place, Path):
            told += "; the next sweep sets it aside and begins a new one"
        raise SpicaError(told) from error


def _lines(name: str, stats: CacheStats) -> str:
    rows = {
        "entries": f"{stats.entries:,}",
        "of these noisy": f"{stats.noisy:,}",
        "measurements kept": f"{stats.measurements:,}, {stats.bytes / 2**20:.1f} MiB",
        "replays saved": f"{stats.hits:,}",
        "oldest use": _time(stats.oldest_use),
        "newest use": _time(stats.newest_use),
    }
    lines = [f"result cache {name}", *(f"  {what:<18} {value}" for what, value in rows.items())]
    return "\n".join(lines) + "\n"


def _time(at: float | None) -> str:
    return "-" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
