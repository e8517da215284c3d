"""`spica-async prune`: a journal forgets sweeps that ended long ago."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import typer

from spica_async.cli.logs import log_warnings_to_stderr
from spica_async.errors import InputError
from spica_async.journal.opening import JournalOptions, opened
from spica_async.journal.retiring import retire


def prune_command(older_than_days: float, *, output: Path, journal: str | None) -> None:
    """Remove sweeps, and print how many.

    Args:
        older_than_days: how long ago they have ended, at least.
        output: the folder for the sweeps' own folders.
        journal: URL of the journal; None: as the environment or `output` has it.

    Raises:
        InputError: there is no such journal.
        SpicaError: the journal cannot be changed.
    """
    checked_days("--older-than", older_than_days)
    log_warnings_to_stderr()
    options = JournalOptions.read(journal, output)
    if not options.exists:
        raise InputError(f"there is no journal {options.name}: see --output and --journal")

    async def prune() -> int:
        async with opened(options) as found:
            return await retire(found, keep_days=older_than_days)

    removed = asyncio.run(prune())
    sweeps = "sweep" if removed == 1 else "sweeps"
    typer.echo(f"removed {removed} {sweeps} from {options.name}; their folders are where they were")


def checked_days(option: str, days: float) -> float:
    """A number of days.

    Raises:
        InputError: it is none, naming the option.
    """
    if not math.isfinite(days):
        raise InputError(f"{option}: give a number of days")
    return days
