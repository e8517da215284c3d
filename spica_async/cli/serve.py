"""`spica-async serve`: the tuning daemon."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import structlog

from spica_async.broker import BrokerOptions
from spica_async.cli.logs import log_to
from spica_async.cli.options import DEFAULT_GRACE_SECONDS
from spica_async.daemon.http.settings import HttpSettings
from spica_async.daemon.http.tokens import Tokens, read_tokens
from spica_async.daemon.program import DaemonOptions, run_daemon
from spica_async.jobs import check_root
from spica_async.journal.opening import JournalOptions
from workers.program import checked_slots


def serve_command(
    *,
    output: Path,
    journal: str | None,
    broker: BrokerOptions | None,
    slots: int | None,
    parallel_sweeps: int,
    max_queued: int,
    grace_seconds: float | None,
    host: str,
    port: int,
    token_file: Path | None,
) -> int:
    """Serve until a signal comes, and return the exit code.

    Raises:
        SpicaError: it cannot be begun or gone on with; an `InputError` if an option is to blame.
    """
    log_to(sys.stderr, logging.INFO, structlog.dev.ConsoleRenderer(colors=False))
    check_root(output)
    local = 0 if slots is None and broker is not None else checked_slots(slots)
    if grace_seconds is None:
        grace_seconds = DEFAULT_GRACE_SECONDS if broker else 0.0
    options = DaemonOptions(
        output=output,
        journal=JournalOptions.read(journal, output),
        broker=broker,
        slots=local,
        parallel_sweeps=parallel_sweeps,
        max_queued=max_queued,
        grace_seconds=grace_seconds,
        http=HttpSettings(host=host, port=port, tokens=Tokens.of(read_tokens(token_file))),
    )
    return run_daemon(options, lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201  # the terminal's
