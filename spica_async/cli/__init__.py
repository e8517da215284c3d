"""The command line: `spica-async run | resume | check | trace | topology | health`."""

from __future__ import annotations

import io
import sys
import traceback
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from spica_async.bus.limits import DEFAULT_HARD_LIMIT_SECONDS
from spica_async.cli import options
from spica_async.errors import InputError, SpicaError, keep_traceback

EXIT_FAULT = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="spica-async",
    help="Find the best NVIDIA Dynamo deployment; every candidate is scored by a real replay.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
trace_app = typer.Typer(help="Request traces in Mooncake's format.", no_args_is_help=True)
app.add_typer(trace_app, name="trace")
ConfigPath = Annotated[Path, typer.Argument(help="the YAML file of the sweep", metavar="CONFIG")]


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(f"spica-async {metadata.version('spica-async')}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="print and exit"),
    ] = False,
) -> None:
    pass


@app.command()
def run(
    config: ConfigPath,
    *,
    bus: options.Bus = None,
    slots: options.Slots = None,
    output: options.Output = options.DEFAULT_OUTPUT,
    journal: options.Journal = None,
    json: options.AsJson = False,
    grace_seconds: options.GraceSeconds = None,
    hard_limit_seconds: options.HardLimitSeconds = None,
    trace_host: options.TraceHost = None,
    trace_port: options.TracePort = None,
    trace_url: options.TraceUrls = None,
    management: options.ManagementUrl = None,
    ca: options.Ca = None,
    cert: options.Cert = None,
    key: options.Key = None,
) -> None:
    """Run one sweep and print its best deployments.

    Replays run in this machine's processes, or with --bus where workers are.
    """
    from spica_async.broker import read_broker_options  # noqa: PLC0415  # `--help` stays light
    from spica_async.cli.run import read_run_options, run_sweep_command  # noqa: PLC0415  # as above

    broker = read_broker_options(
        bus,
        ca=ca,
        cert=cert,
        key=key,
        hard_limit_seconds=hard_limit_seconds,
        trace_host=trace_host,
        trace_port=trace_port,
        trace_urls=trace_url,
        management=management,
    )
    how = read_run_options(
        slots=slots, output=output, grace_seconds=grace_seconds, broker=broker, journal=journal
    )
    raise typer.Exit(run_sweep_command(config, how, as_json=json))


@app.command()
def resume(
    sweep: Annotated[str, typer.Argument(help="the name of the sweep's folder", metavar="SWEEP")],
    *,
    bus: options.Bus = None,
    slots: options.Slots = None,
    output: options.Output = options.DEFAULT_OUTPUT,
    journal: options.Journal = None,
    json: options.AsJson = False,
    grace_seconds: options.GraceSeconds = None,
    hard_limit_seconds: options.HardLimitSeconds = None,
    trace_host: options.TraceHost = None,
    trace_port: options.TracePort = None,
    trace_url: options.TraceUrls = None,
    management: options.ManagementUrl = None,
    ca: options.Ca = None,
    cert: options.Cert = None,
    key: options.Key = None,
) -> None:
    """Go on with a sweep that was interrupted or has crashed, where it was left.

    What has been measured is not measured again. A sweep that has ended is shown once more.
    """
    from spica_async.broker import read_broker_options  # noqa: PLC0415  # `--help` stays light
    from spica_async.cli.run import (  # noqa: PLC0415  # as above
        read_run_options,
        resume_sweep_command,
    )

    broker = read_broker_options(
        bus,
        ca=ca,
        cert=cert,
        key=key,
        hard_limit_seconds=hard_limit_seconds,
        trace_host=trace_host,
        trace_port=trace_port,
        trace_urls=trace_url,
        management=management,
    )
    how = read_run_options(
        slots=slots, output=output, grace_seconds=grace_seconds, broker=broker, journal=journal
    )
    raise typer.Exit(resume_sweep_command(sweep, how, as_json=json))


@app.command()
def check(config: ConfigPath) -> None:
    """Show what would be searched, what would not and why.

    No candidate is replayed; the engine is tried with one request per backend and mode.
    """
    from spica_async.cli.check import check_command  # noqa: PLC0415  # `--help` stays light

    check_command(config)


@trace_app.command()
def synth(
    path: Annotated[Path, typer.Argument(help="the file to write", metavar="OUTPUT")],
    *,
    seed: Annotated[int, typer.Option(help="the same seed makes the same trace")] = 1,
    requests: Annotated[int, typer.Option(min=1, help="how many")] = 1000,
    duration: Annotated[float, typer.Option(min=1, help="seconds of arrivals")] = 600.0,
) -> None:
    """Write a small bursty trace."""
    from spica_async.cli.trace import synth_command  # noqa: PLC0415  # `--help` stays light

    synth_command(path, seed=seed, requests=requests, duration_seconds=duration)


class TopologyAction(StrEnum):
    """What to do with the topology."""

    DECLARE = "declare"
    CHECK = "check"


@app.command()
def topology(
    action: Annotated[
        TopologyAction, typer.Argument(help="make what is missing, or only tell what is")
    ],
    *,
    bus: options.Bus = None,
    engine: options.Engines = None,
    management: options.ManagementUrl = None,
    hard_limit_seconds: options.HardLimitSeconds = None,
    json: options.AsJson = False,
    ca: options.Ca = None,
    cert: options.Cert = None,
    key: options.Key = None,
) -> None:
    """Declare or check the queues and exchanges that all services share on a broker.

    The exit code is 1 if anything is missing, otherwise than it should be, or out of our rights.
    """
    from spica_async.bus.address import BrokerAddress  # noqa: PLC0415  # `--help` stays light
    from spica_async.bus.consumer_timeout import Management  # noqa: PLC0415  # as above
    from spica_async.cli.topology import topology_command  # noqa: PLC0415  # as above

    address = BrokerAddress.from_options(bus, ca=ca, cert=cert, key=key)
    good = topology_command(
        address,
        engines=engine or [],
        create=action is TopologyAction.DECLARE,
        management=Management.from_option(management, address),
        hard_limit_seconds=hard_limit_seconds or DEFAULT_HARD_LIMIT_SECONDS,
        as_json=json,
    )
    raise typer.Exit(0 if good else EXIT_FAULT)


@app.command()
def health(*, bus: options.Bus = None) -> None:
    """Tell whether this container's process is connected to its broker, by the exit code."""
    from spica_async.bus.address import BrokerAddress  # noqa: PLC0415  # `--help` stays light
    from spica_async.cli.health import health_command  # noqa: PLC0415  # as above

    health_command(BrokerAddress.from_options(bus))


def main() -> None:
    """Run the command line; what a person can act on is one message, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that has not all the characters should cost none of the result.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except InputError as error:
        _print_error(error)
        sys.exit(EXIT_BAD_INPUT)
    except SpicaError as error:
        _print_error(error)
        sys.exit(EXIT_FAULT)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception:  # noqa: BLE001  # a bug of ours: not for the user
        _print_error(SpicaError(f"unexpected: {keep_traceback(traceback.format_exc())}"))
        sys.exit(EXIT_FAULT)


def _print_error(error: SpicaError) -> None:
    Console(stderr=True).print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
