"""The command line's options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spica_async.bus.limits import DEFAULT_HARD_LIMIT_SECONDS, HOLD_MARGIN_SECONDS
from spica_async.service.http.address import DEFAULT_URL, URL_VARIABLE

DEFAULT_OUTPUT = Path("results")
DEFAULT_GRACE_SECONDS = 10.0
"""With a broker; enough for a small replay to end and for its result to arrive."""

Bus = Annotated[
    str | None,
    typer.Option(
        help="the broker: amqp://host or amqps://host; user:password@ goes before the host, :port"
        " and /virtual-host behind it; default: the variable SPICA_BUS",
        metavar="URL",
    ),
]
Ca = Annotated[
    Path | None, typer.Option(help="certificates to trust, for amqps:// (PEM)", metavar="FILE")
]
Cert = Annotated[
    Path | None, typer.Option(help="our own certificate, for amqps:// (PEM)", metavar="FILE")
]
Key = Annotated[
    Path | None, typer.Option(help="its key, if in a file of its own (PEM)", metavar="FILE")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="one JSON document on stdout, progress on stderr")
]
HardLimitSeconds = Annotated[
    float | None,
    typer.Option(
        min=1,
        help="the longest that an evaluation may take over a broker, at least"
        f" {HOLD_MARGIN_SECONDS:g} s below its consumer_timeout;"
        f" default: {DEFAULT_HARD_LIMIT_SECONDS:g}",
        metavar="SECONDS",
        show_default=False,
    ),
]
Engines = Annotated[
    list[str] | None,
    typer.Option(
        "--engine",
        help="fingerprint of the engine that workers have; may be repeated; default: of this one",
    ),
]
Slots = Annotated[
    int | None,
    typer.Option(
        min=1, help="replays at a time on this machine; default: cores; with a broker: none"
    ),
]
Journal = Annotated[
    str | None,
    typer.Option(
        help="where sweeps are kept for when they are resumed: postgresql://user:password@host/name"
        " or sqlite:///file; default: the variable SPICA_JOURNAL, or journal.sqlite3 in the folder"
        " of --output",
        metavar="URL",
    ),
]
CacheJournal = Annotated[
    str | None,
    typer.Option(
        "--journal",
        help="a journal on a PostgreSQL server keeps the results, too; with any other they are in"
        " the user's cache; default: the variable SPICA_JOURNAL",
        metavar="URL",
    ),
]
NoCache = Annotated[
    bool,
    typer.Option(
        "--no-cache",
        envvar="SPICA_NO_CACHE",
        help="measure again what was measured before; also by SPICA_NO_CACHE=1",
        show_envvar=False,
    ),
]
Output = Annotated[Path, typer.Option(help="folder for the sweep's own folder")]
GraceSeconds = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="how long an interrupted sweep waits for the replays that run; default: 0; with a"
        f" broker: {DEFAULT_GRACE_SECONDS:g}",
        metavar="SECONDS",
    ),
]
TraceHost = Annotated[
    str | None,
    typer.Option(
        help="where workers fetch the trace from this coordinator; default: every address, or the"
        " loopback if the broker is there",
    ),
]
TracePort = Annotated[
    int | None, typer.Option(min=1, max=65535, help="the port for it; default: any free one")
]
TraceUrls = Annotated[
    list[str] | None,
    typer.Option(
        "--trace-url",
        help="where workers may fetch the trace before they ask this coordinator: http, https,"
        " s3, gs, or what else their --trace-schemes allow; no chain with ::; may be repeated",
        metavar="URL",
    ),
]
Daemon = Annotated[
    str | None,
    typer.Option(
        help=f"the tuning daemon; default: the variable {URL_VARIABLE}, or {DEFAULT_URL}",
        metavar="URL",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="has the daemon's token in its first line; default: the variable SPICA_DAEMON_TOKEN"
        " has the token",
        metavar="FILE",
    ),
]
