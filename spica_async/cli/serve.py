"""`spica-async serve`: the tuning daemon."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog

from spica_async.bus.broker_options import BrokerOptions
from spica_async.cli.logs import log_to
from spica_async.cli.options import DEFAULT_GRACE_SECONDS
from spica_async.cli.prune import checked_days
from spica_async.journal.opening import JournalOptions
from spica_async.service.http.own_token import new_token
from spica_async.service.http.settings import HttpSettings
from spica_async.service.http.tokens import Tokens, read_tokens
from spica_async.service.jobs import check_root
from spica_async.service.local_files import ANY_FILE, LocalFiles
from spica_async.service.program import DaemonOptions, run_daemon
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
    trace_roots: Sequence[Path],
    keep_days: float | None,
) -> int:
    """Serve until a signal comes, and return the exit code.

    Without a token of its user's the daemon makes one of its own, for that user alone.

    Raises:
        SpicaError: it cannot be begun or gone on with; an `InputError` if an option is to blame.
    """
    log_to(sys.stderr, logging.INFO, structlog.dev.ConsoleRenderer(colors=False))
    check_root(output)
    local = 0 if slots is None and broker is not None else checked_slots(slots)
    if grace_seconds is None:
        grace_seconds = DEFAULT_GRACE_SECONDS if broker else 0.0
    tokens = read_tokens(token_file)
    own_token = None if tokens else new_token()
    below = LocalFiles.below(trace_roots)
    options = DaemonOptions(
        output=output,
        journal=JournalOptions.read(journal, output),
        broker=broker,
        slots=local,
        parallel_sweeps=parallel_sweeps,
        max_queued=max_queued,
        grace_seconds=grace_seconds,
        http=HttpSettings(
            host=host,
            port=port,
            tokens=Tokens.of(tokens or [own_token or ""]),
            own_token=own_token,
            # Who has this token can read what the daemon can.
            files=below if trace_roots or own_token is None else ANY_FILE,
        ),
        command_files=below,
        keep_days=keep_days if keep_days is None else checked_days("--keep-days", keep_days),
    )
    return run_daemon(options, lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201  # the terminal's
