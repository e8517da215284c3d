"""`spica-async serve`: the tuning daemon."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from spica_async.cli.options import SweepFlags, TokenFile
from spica_async.cli.prune import check_days
from spica_async.service.http import DEFAULT_HOST, DEFAULT_PORT


@dataclass(frozen=True, kw_only=True)
class DaemonRunFlags(SweepFlags):
    """How to run the daemon."""

    sweeps: Annotated[int, typer.Option(min=1, help="sweeps that run side by side")] = 2
    max_queued: Annotated[int, typer.Option(min=1, help="sweeps that may wait")] = 100
    host: Annotated[
        str, typer.Option(help="where to listen; outside of the loopback with --token-file only")
    ] = DEFAULT_HOST
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one")] = DEFAULT_PORT
    token_file: TokenFile = None
    trace_root: Annotated[
        list[Path] | None,
        typer.Option(
            help="submissions may name traces and folders of models below this folder alone; may be"
            " repeated; default: any for this user's own, none for others",
            metavar="DIR",
        ),
    ] = None
    keep_days: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="forget sweeps that ended so long ago, as `prune` does; default: none",
            metavar="DAYS",
        ),
    ] = None


def serve(*, flags: DaemonRunFlags) -> None:
    """Run the tuning daemon: sweeps are submitted to it, watched, paused and resumed.

    What was running when it ended, in whatever way, goes on when it is started again.
    """
    from spica_async.cli.logs import log_to_stderr
    from spica_async.config.submission import ANY_FILE, LocalFiles
    from spica_async.journal.opening import JournalOptions
    from spica_async.service.http.settings import HttpSettings
    from spica_async.service.http.tokens import Tokens, new_token, read_tokens
    from spica_async.service.jobs import check_root
    from spica_async.service.program import DaemonOptions, run_daemon
    from spica_async.service.runner import ManagerSettings
    from workers.settings import checked_slots

    log_to_stderr()
    broker = flags.broker()
    check_root(flags.output)
    check_days("--keep-days", flags.keep_days)
    tokens = read_tokens(flags.token_file)
    # Without a token of its user's the daemon makes one of its own, for that user alone.
    own_token = None if tokens else new_token()
    below = LocalFiles.below(flags.trace_root or [])
    slots = 0 if flags.slots is None and broker is not None else checked_slots(flags.slots)
    options = DaemonOptions(
        sweeps=ManagerSettings(
            output=flags.output.absolute(),
            parallel_sweeps=flags.sweeps,
            max_queued=flags.max_queued,
            grace_seconds=flags.grace(),
            broker=broker,
            slots=max(1, slots),
        ),
        journal=JournalOptions.read(flags.journal, flags.output),
        slots=slots,
        http=HttpSettings(
            host=flags.host,
            port=flags.port,
            tokens=Tokens.of(tokens or [own_token or ""]),
            own_token=own_token,
            # Who has this token can read what the daemon can.
            files=below if flags.trace_root or own_token is None else ANY_FILE,
        ),
        command_files=below,
        keep_days=flags.keep_days,
    )
    raise typer.Exit(run_daemon(options, lambda line: typer.echo(line, err=True)))
