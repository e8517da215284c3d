"""The command line: `spica-async run | resume | check | ...`, and those that speak to a daemon."""

from __future__ import annotations

import io
import sys
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from spica_async.bus.limits import DEFAULT_HARD_LIMIT_SECONDS
from spica_async.cli import options
from spica_async.errors import InputError, SpicaError, TimeUpError, file_problem, unforeseen
from spica_async.exit_codes import EXIT_BAD_INPUT, EXIT_FAULT, EXIT_INTERRUPTED, EXIT_TIME_UP
from spica_async.processes.threads import leaving_threads_behind

app = typer.Typer(
    name="spica-async",
    help="Find the best NVIDIA Dynamo deployment; every candidate is scored by a real replay.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
trace_app = typer.Typer(help="Request traces in Mooncake's format.", no_args_is_help=True)
app.add_typer(trace_app, name="trace")
cache_app = typer.Typer(help="What need not be measured again.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")
ConfigPath = Annotated[Path, typer.Argument(help="the YAML file of the sweep", metavar="CONFIG")]
SweepId = Annotated[str, typer.Argument(help="the sweep's id", metavar="SWEEP")]


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
    no_cache: options.NoCache = False,
    json: options.AsJson = False,
    grace_seconds: options.GraceSeconds = None,
    hard_limit_seconds: options.HardLimitSeconds = None,
    trace_host: options.TraceHost = None,
    trace_port: options.TracePort = None,
    trace_url: options.TraceUrls = None,
    ca: options.Ca = None,
    cert: options.Cert = None,
    key: options.Key = None,
) -> None:
    """Run one sweep and print its best deployments.

    Replays run in this machine's processes, or with --bus where workers are.
    """
    from spica_async.bus.broker_options import read_broker_options  # noqa: PLC0415  # `--help` stays light
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
    )
    how = read_run_options(
        slots=slots,
        output=output,
        grace_seconds=grace_seconds,
        broker=broker,
        journal=journal,
        use_cache=not no_cache,
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
    no_cache: options.NoCache = False,
    json: options.AsJson = False,
    grace_seconds: options.GraceSeconds = None,
    hard_limit_seconds: options.HardLimitSeconds = None,
    trace_host: options.TraceHost = None,
    trace_port: options.TracePort = None,
    trace_url: options.TraceUrls = None,
    ca: options.Ca = None,
    cert: options.Cert = None,
    key: options.Key = None,
    daemon: Annotated[
        str | None,
        typer.Option(
            help="have this tuning daemon go on with a sweep of its own, in its own way: of the"
            " other options only --token-file and --json count then",
            metavar="URL",
        ),
    ] = None,
    token_file: options.TokenFile = None,
) -> None:
    """Go on with a sweep that was interrupted or has crashed, where it was left.

    What has been measured is not measured again. A sweep that has ended is shown once more.
    """
    if daemon is not None:
        _order("resume", sweep, daemon, token_file, as_json=json)
        return
    from spica_async.bus.broker_options import read_broker_options  # noqa: PLC0415  # `--help` stays light
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
    )
    how = read_run_options(
        slots=slots,
        output=output,
        grace_seconds=grace_seconds,
        broker=broker,
        journal=journal,
        use_cache=not no_cache,
    )
    raise typer.Exit(resume_sweep_command(sweep, how, as_json=json))


@app.command()
def serve(
    *,
    output: options.Output = options.DEFAULT_OUTPUT,
    journal: options.Journal = None,
    bus: options.Bus = None,
    slots: options.Slots = None,
    sweeps: Annotated[int, typer.Option(min=1, help="sweeps that run side by side")] = 2,
    max_queued: Annotated[int, typer.Option(min=1, help="sweeps that may wait")] = 100,
    host: Annotated[
        str, typer.Option(help="where to listen; outside of the loopback with --token-file only")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one")] = 8265,
    token_file: options.TokenFile = None,
    trace_root: Annotated[
        list[Path] | None,
        typer.Option(
            help="submissions may name traces and folders of models below this folder alone; may be"
            " repeated; default: any for this user's own, none for others",
            metavar="DIR",
        ),
    ] = None,
    keep_days: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="forget sweeps that ended so long ago, as `prune` does; default: none",
            metavar="DAYS",
        ),
    ] = None,
    grace_seconds: options.GraceSeconds = None,
    hard_limit_seconds: options.HardLimitSeconds = None,
    trace_host: options.TraceHost = None,
    trace_port: options.TracePort = None,
    trace_url: options.TraceUrls = None,
    ca: options.Ca = None,
    cert: options.Cert = None,
    key: options.Key = None,
) -> None:
    """Run the tuning daemon: sweeps are submitted to it, watched, paused and resumed.

    What was running when it ended, in whatever way, goes on when it is started again.
    """
    from spica_async.bus.broker_options import read_broker_options  # noqa: PLC0415  # `--help` stays light
    from spica_async.cli.serve import serve_command  # noqa: PLC0415  # as above

    broker = read_broker_options(
        bus,
        ca=ca,
        cert=cert,
        key=key,
        hard_limit_seconds=hard_limit_seconds,
        trace_host=trace_host,
        trace_port=trace_port,
        trace_urls=trace_url,
    )
    code = serve_command(
        output=output,
        journal=journal,
        broker=broker,
        slots=slots,
        parallel_sweeps=sweeps,
        max_queued=max_queued,
        grace_seconds=grace_seconds,
        host=host,
        port=port,
        token_file=token_file,
        trace_roots=trace_root or [],
        keep_days=keep_days,
    )
    raise typer.Exit(code)


@app.command()
def submit(
    config: ConfigPath,
    *,
    priority: Annotated[
        int, typer.Option(min=-100, max=100, help="higher begins first and gets more of the slots")
    ] = 0,
    no_cache: options.NoCache = False,
    watch: Annotated[bool, typer.Option("--watch", help="then do as `watch` does")] = False,
    daemon: options.Daemon = None,
    token_file: options.TokenFile = None,
    json: options.AsJson = False,
) -> None:
    """Hand a sweep to a tuning daemon and print the sweep's id."""
    from spica_async.cli.daemon_client import submit_command  # noqa: PLC0415  # `--help` stays light
    from spica_async.service.client import DaemonAddress  # noqa: PLC0415  # as above

    address = DaemonAddress.read(daemon, token_file)
    raise typer.Exit(
        submit_command(
            config,
            address,
            priority=priority,
            use_cache=not no_cache,
            watch=watch,
            as_json=json,
        )
    )


@app.command("list")
def list_sweeps(
    *,
    state: Annotated[str | None, typer.Option(help="only those that are e.g. running")] = None,
    limit: Annotated[int, typer.Option(min=1, help="the latest so many", metavar="N")] = 1000,
    daemon: options.Daemon = None,
    token_file: options.TokenFile = None,
    json: options.AsJson = False,
) -> None:
    """List the sweeps of a tuning daemon, the latest first."""
    from spica_async.cli.daemon_client import list_command  # noqa: PLC0415  # `--help` stays light
    from spica_async.service.client import DaemonAddress  # noqa: PLC0415  # as above

    list_command(DaemonAddress.read(daemon, token_file), state, limit=limit, as_json=json)


@app.command()
def show(
    sweep: SweepId,
    *,
    daemon: options.Daemon = None,
    token_file: options.TokenFile = None,
    json: options.AsJson = False,
) -> None:
    """Show how far a sweep of a tuning daemon is, and its best deployments."""
    from spica_async.cli.daemon_client import show_command  # noqa: PLC0415  # `--help` stays light
    from spica_async.service.client import DaemonAddress  # noqa: PLC0415  # as above

    show_command(sweep, DaemonAddress.read(daemon, token_file), as_json=json)


@app.command()
def watch(
    sweep: SweepId,
    *,
    daemon: options.Daemon = None,
    token_file: options.TokenFile = None,
    json: options.AsJson = False,
) -> None:
    """Follow a sweep of a tuning daemon to its end; the exit code is that of `run`."""
    from spica_async.cli.daemon_client import watch_command  # noqa: PLC0415  # `--help` stays light
    from spica_async.service.client import DaemonAddress  # noqa: PLC0415  # as above

    raise typer.Exit(watch_command(sweep, DaemonAddress.read(daemon, token_file), as_json=json))


@app.command()
def cancel(
    sweep: SweepId,
    *,
    daemon: options.Daemon = None,
    token_file: options.TokenFile = None,
    json: options.AsJson = False,
) -> None:
    """End a sweep of a tuning daemon; what was found is kept, and only `resume` brings it back."""
    _order("cancel", sweep, daemon, token_file, as_json=json)


@app.command()
def pause(
    sweep: SweepId,
    *,
    daemon: options.Daemon = None,
    token_file: options.TokenFile = None,
    json: options.AsJson = False,
) -> None:
    """Let a sweep of a tuning daemon rest until `resume --daemon`."""
    _order("pause", sweep, daemon, token_file, as_json=json)


@app.command()
def remove(
    sweep: SweepId,
    *,
    daemon: options.Daemon = None,
    token_file: options.TokenFile = None,
) -> None:
    """Have a tuning daemon forget a sweep that has ended or rests; its folder stays."""
    from spica_async.cli.daemon_client import remove_command  # noqa: PLC0415  # `--help` stays light
    from spica_async.service.client import DaemonAddress  # noqa: PLC0415  # as above

    remove_command(sweep, DaemonAddress.read(daemon, token_file))


@app.command()
def prune(
    *,
    older_than: Annotated[
        float,
        typer.Option(min=0, help="how long ago they have ended, at least", metavar="DAYS"),
    ],
    output: options.Output = options.DEFAULT_OUTPUT,
    journal: options.Journal = None,
) -> None:
    """Have a journal forget sweeps that have ended, failed or were cancelled; folders stay."""
    from spica_async.cli.prune import prune_command  # noqa: PLC0415  # `--help` stays light

    prune_command(older_than, output=output, journal=journal)


def _order(
    verb: Literal["cancel", "pause", "resume"],
    sweep: str,
    daemon: str | None,
    token_file: Path | None,
    *,
    as_json: bool,
) -> None:
    from spica_async.cli.daemon_client import order_command  # noqa: PLC0415  # `--help` stays light
    from spica_async.service.client import DaemonAddress  # noqa: PLC0415  # as above

    order_command(verb, sweep, DaemonAddress.read(daemon, token_file), as_json=as_json)


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


@cache_app.command("stats")
def cache_stats(*, journal: options.CacheJournal = None, json: options.AsJson = False) -> None:
    """Show how much is kept, and how often it saved a replay."""
    from spica_async.cli.cache import stats_command  # noqa: PLC0415  # `--help` stays light

    stats_command(journal, as_json=json)


@cache_app.command("prune")
def cache_prune(
    *,
    older_than: Annotated[
        float | None,
        typer.Option(min=0, help="remove what was not used for so long", metavar="DAYS"),
    ] = None,
    max_entries: Annotated[
        int | None, typer.Option(min=0, help="keep the latest used ones alone", metavar="N")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="keep nothing")] = False,
    journal: options.CacheJournal = None,
) -> None:
    """Remove what was not used for longest; it is measured again when it is asked for."""
    from spica_async.cli.cache import prune_command  # noqa: PLC0415  # `--help` stays light

    prune_command(
        journal, older_than_days=older_than, max_entries=max_entries, everything=everything
    )


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
    from spica_async.cli.topology import topology_command  # noqa: PLC0415  # as above

    address = BrokerAddress.from_options(bus, ca=ca, cert=cert, key=key)
    good = topology_command(
        address,
        engines=engine or [],
        create=action is TopologyAction.DECLARE,
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
    """The program `spica-async`."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that has not all the characters should cost none of the result.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with leaving_threads_behind():
        run_app()


def run_app() -> None:
    """Run the command line; what a person can act on is one message, never a traceback.

    Raises:
        SystemExit: with the exit code.
    """
    try:
        _check_current_folder()
        app()
    except InputError as error:
        _print_error(error)
        sys.exit(EXIT_BAD_INPUT)
    except TimeUpError as error:
        _print_error(error)
        sys.exit(EXIT_TIME_UP)
    except SpicaError as error:
        _print_error(error)
        sys.exit(EXIT_FAULT)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:  # noqa: BLE001  # a bug of ours: not for the user
        _print_error(SpicaError(unforeseen(error)))
        sys.exit(EXIT_FAULT)


def _check_current_folder() -> None:
    """Refuse a current folder that was removed: neither paths nor child processes work from it."""
    try:
        Path.cwd()
    except OSError as error:
        raise InputError(f"the current folder: {file_problem(error)}; go to another") from error


def _print_error(error: SpicaError) -> None:
    Console(stderr=True).print(f"error: {error}", markup=False, highlight=False, soft_wrap=True)
