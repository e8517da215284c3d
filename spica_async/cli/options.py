"""The command line's options that several commands share, each declared once.

typer knows single options only. A command may take some together, as one of the dataclasses here;
`flattened` shows typer one option for each of their fields.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from spica_async.bus.limits import DEFAULT_HARD_LIMIT_SECONDS, HOLD_MARGIN_SECONDS
from spica_async.errors import InputError
from spica_async.service.http import DEFAULT_URL

if TYPE_CHECKING:
    from spica_async.bus.address import BrokerAddress
    from spica_async.bus.broker_options import BrokerOptions
    from spica_async.service.client import DaemonClient

DEFAULT_OUTPUT: Final = Path("results")
DEFAULT_GRACE_SECONDS: Final = 10.0
"""With a broker; enough for a small replay to end and for its result to arrive."""

ConfigPath = Annotated[Path, typer.Argument(help="the YAML file of the sweep", metavar="CONFIG")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="a value in place of the file's, e.g. search_space.gpu_budget=16; may be repeated",
        metavar="KEY=VALUE",
    ),
]
SweepId = Annotated[str, typer.Argument(help="the sweep's id", metavar="SWEEP")]
AsJson = Annotated[
    bool, typer.Option("--json", help="one JSON document on stdout, progress on stderr")
]
Bus = Annotated[
    str | None,
    typer.Option(
        envvar="SPICA_BUS",
        help="the broker: amqp://host or amqps://host; user:password@ goes before the host, :port"
        " and /virtual-host behind it; default: the variable SPICA_BUS",
        metavar="URL",
        show_envvar=False,
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
Journal = Annotated[
    str | None,
    typer.Option(
        envvar="SPICA_JOURNAL",
        help="where sweeps are kept for when they are resumed: postgresql://user:password@host/name"
        " or sqlite:///file; default: the variable SPICA_JOURNAL, or journal.sqlite3 in the folder"
        " of --output",
        metavar="URL",
        show_envvar=False,
    ),
]
Slots = Annotated[
    int | None,
    typer.Option(
        min=1, help="replays at a time on this machine; default: cores; with a broker: none"
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


@dataclass(frozen=True, kw_only=True)
class BrokerFlags:
    """How to reach the broker, and how long an evaluation may take there."""

    bus: Bus = None
    ca: Annotated[
        Path | None, typer.Option(help="certificates to trust, for amqps:// (PEM)", metavar="FILE")
    ] = None
    cert: Annotated[
        Path | None, typer.Option(help="our own certificate, for amqps:// (PEM)", metavar="FILE")
    ] = None
    key: Annotated[
        Path | None, typer.Option(help="its key, if in a file of its own (PEM)", metavar="FILE")
    ] = None
    hard_limit_seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            help="the longest that an evaluation may take over a broker, at least"
            f" {HOLD_MARGIN_SECONDS:g} s below its consumer_timeout;"
            f" default: {DEFAULT_HARD_LIMIT_SECONDS:g}",
            metavar="SECONDS",
        ),
    ] = None

    def address(self) -> BrokerAddress:
        """Where the broker is.

        Raises:
            InputError: naming the option to correct.
        """
        from spica_async.bus.address import BrokerAddress

        return BrokerAddress.from_options(self.bus, ca=self.ca, cert=self.cert, key=self.key)

    def limit_seconds(self) -> float:
        """The longest that an evaluation may take."""
        return self.hard_limit_seconds or DEFAULT_HARD_LIMIT_SECONDS


@dataclass(frozen=True, kw_only=True)
class SweepFlags(BrokerFlags):
    """How to run sweeps: what `run`, `resume` and `serve` have in common."""

    output: Output = DEFAULT_OUTPUT
    journal: Journal = None
    slots: Slots = None
    grace_seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="how long an interrupted sweep waits for the replays that run; default: 0; with a"
            f" broker: {DEFAULT_GRACE_SECONDS:g}",
            metavar="SECONDS",
        ),
    ] = None
    trace_host: Annotated[
        str | None,
        typer.Option(
            help="where workers fetch the trace from this coordinator; default: every address, or"
            " the loopback if the broker is there",
        ),
    ] = None
    trace_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="the port for it; default: any free one")
    ] = None
    trace_url: Annotated[
        list[str] | None,
        typer.Option(
            help="where workers may fetch the trace before they ask this coordinator: http, https,"
            " s3, gs, or what else their --trace-schemes allow; no chain with ::; may be repeated",
            metavar="URL",
        ),
    ] = None

    def broker(self) -> BrokerOptions | None:
        """How to use the broker; None: sweeps do without one.

        Raises:
            InputError: something is wrong with an option, or it has no meaning without a broker.
        """
        from spica_async.bus.broker_options import BrokerOptions

        if not self.bus:
            for name in (
                *("ca", "cert", "key", "hard_limit_seconds"),
                *("trace_host", "trace_port", "trace_url"),
            ):
                if getattr(self, name):
                    option = name.replace("_", "-")
                    raise InputError(f"--{option}: has a meaning with --bus only")
            return None
        return BrokerOptions(
            address=self.address(),
            hard_limit_seconds=self.limit_seconds(),
            trace_host=self.trace_host,
            trace_port=self.trace_port or 0,
            trace_urls=tuple(self.trace_url or ()),
        )

    def grace(self) -> float:
        """Seconds that an interrupted sweep waits for the replays that run."""
        if self.grace_seconds is not None:
            return self.grace_seconds
        return DEFAULT_GRACE_SECONDS if self.bus else 0.0


@dataclass(frozen=True, kw_only=True)
class DaemonFlags:
    """Which tuning daemon a command speaks to."""

    daemon: Annotated[
        str,
        typer.Option(
            envvar="SPICA_DAEMON",
            help=f"the tuning daemon; default: the variable SPICA_DAEMON, or {DEFAULT_URL}",
            metavar="URL",
            show_default=False,
            show_envvar=False,
        ),
    ] = DEFAULT_URL
    token_file: TokenFile = None

    def client(self) -> DaemonClient:
        """The client of the daemon, for a `with` statement.

        Raises:
            InputError: naming the option to correct.
        """
        from spica_async.service.client import DaemonClient

        return DaemonClient.of_options(self.daemon, self.token_file)


def flattened(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer, which has an option for each field of the dataclasses it takes."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        parameter.name: parameter.annotation
        for parameter in signature.parameters.values()
        if is_dataclass(parameter.annotation)
    }

    @functools.wraps(command)
    def call(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    flat: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name in groups:
            flat += _options_of(parameter.annotation)
        else:
            flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    call.__signature__ = signature.replace(parameters=flat)  # type: ignore[attr-defined]  # `inspect` looks for it
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return call


def _options_of(group: Any) -> list[inspect.Parameter]:
    # Unlike `inspect`, this reads each class's annotations where that class is.
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
