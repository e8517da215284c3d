"""The command line of a worker: `spica-worker`, or `python -m workers`.

Exit codes: 0 after a signal that was followed by a drain, 130 or 143 when a second SIGINT or
SIGTERM cut that short, 1 when the worker cannot work (any more), 2 for a bad option.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from spica_async.cli.logs import log_to_stderr
from spica_async.cli.options import BrokerFlags, flattened
from spica_async.cli.program import run_as_program
from spica_async.errors import InputError
from spica_async.places import make_folder
from spica_async.traces.sources import DEFAULT_SCHEMES, read_schemes
from workers.program import run_program
from workers.settings import (
    DEFAULT_DRAIN_SECONDS,
    DEFAULT_HEARTBEAT_SECONDS,
    ChildSettings,
    WorkerOptions,
    checked_slots,
    default_name,
)
from workers.traces import DEFAULT_MAX_BYTES, TraceCache

_NAME = re.compile("[A-Za-z0-9_-]{1,100}")

app = typer.Typer(
    name="spica-worker",
    help="Evaluate candidates for sweeps that run elsewhere; takes part until SIGTERM or Ctrl-C.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@dataclass(frozen=True, kw_only=True)
class WorkerFlags(BrokerFlags):
    """How to work."""

    slots: Annotated[
        int | None, typer.Option(min=1, help="replays at a time on this machine; default: cores")
    ] = None
    name: Annotated[
        str | None,
        typer.Option(help="unlike any other worker's; default: host and process id"),
    ] = None
    drain_seconds: Annotated[
        float,
        typer.Option(min=0, help="for what runs when SIGTERM comes; the rest is given back"),
    ] = DEFAULT_DRAIN_SECONDS
    heartbeat_seconds: Annotated[
        float, typer.Option(min=1, max=60, help="between two signs of life to coordinators")
    ] = DEFAULT_HEARTBEAT_SECONDS
    trace_cache: Annotated[
        Path | None,
        typer.Option(
            help="folder for traces that were fetched; default: the user's", metavar="DIR"
        ),
    ] = None
    trace_cache_mib: Annotated[
        int, typer.Option(min=1, help="the most that the folder may hold", metavar="MIB")
    ] = DEFAULT_MAX_BYTES // 2**20
    trace_schemes: Annotated[
        str,
        typer.Option(
            help="of the addresses that a trace is fetched from when a request names them,"
            " redirects included; with `file` requests may have this host's files read",
            metavar="SCHEME,...",
        ),
    ] = ",".join(DEFAULT_SCHEMES)
    log_folder: Annotated[
        Path | None,
        typer.Option(
            help="folder for what replay processes print; default: nowhere", metavar="DIR"
        ),
    ] = None
    json_logs: Annotated[bool, typer.Option("--json-logs", help="one JSON object a line")] = False


def work(*, flags: WorkerFlags) -> None:
    """Evaluate candidates for sweeps that run elsewhere; takes part until SIGTERM or Ctrl-C."""
    address = flags.address()
    if (folder := flags.log_folder) is not None:
        make_folder(f"--log-folder: {folder}", folder)
    options = WorkerOptions(
        name=_checked_name(flags.name),
        slots=checked_slots(flags.slots),
        drain_seconds=flags.drain_seconds,
        heartbeat_seconds=flags.heartbeat_seconds,
        hard_limit_seconds=flags.limit_seconds(),
        children=ChildSettings(log_folder=folder),
        traces=TraceCache(
            flags.trace_cache,
            max_bytes=flags.trace_cache_mib * 2**20,
            schemes=read_schemes(flags.trace_schemes),
        ),
    )
    log_to_stderr(as_json=flags.json_logs)
    raise typer.Exit(run_program(address, options))


app.command()(flattened(work))


def main() -> None:
    """The program `spica-worker`."""
    run_as_program(app)


def _checked_name(name: str | None) -> str:
    if name is None:
        # A host's name may have dots in it, which part the words of a queue's name.
        return re.sub("[^A-Za-z0-9_-]", "-", default_name())[-100:]
    if not _NAME.fullmatch(name):
        raise InputError("--name: up to 100 letters, digits, - and _")
    return name
