"""`spica-async prune`: a journal forgets sweeps that ended long ago."""

from __future__ import annotations

import asyncio
import math
from typing import Annotated

import typer

from spica_async.cli.options import DEFAULT_OUTPUT, Journal, Output
from spica_async.errors import InputError


def prune(
    *,
    older_than: Annotated[
        float,
        typer.Option(min=0, help="how long ago they have ended, at least", metavar="DAYS"),
    ],
    output: Output = DEFAULT_OUTPUT,
    journal: Journal = None,
) -> None:
    """Have a journal forget sweeps that have ended, failed or were cancelled; folders stay."""
    from spica_async.cli.logs import log_warnings_to_stderr
    from spica_async.journal.opening import JournalOptions, opened
    from spica_async.journal.retiring import retire

    check_days("--older-than", older_than)
    log_warnings_to_stderr()
    options = JournalOptions.read(journal, output)
    if not options.exists:
        raise InputError(f"there is no journal {options.name}: see --output and --journal")

    async def remove() -> int:
        async with opened(options) as found:
            return await retire(found, keep_days=older_than)

    removed = asyncio.run(remove())
    sweeps = "sweep" if removed == 1 else "sweeps"
    typer.echo(f"removed {removed} {sweeps} from {options.name}; their folders are where they were")


def check_days(option: str, days: float | None) -> None:
    """Refuse a number of days that is none.

    Raises:
        InputError: naming the option.
    """
    if days is not None and not math.isfinite(days):
        raise InputError(f"{option}: give a number of days")
