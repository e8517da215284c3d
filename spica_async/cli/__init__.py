"""The command line: `spica-async run | check | trace`."""

from __future__ import annotations

import io
import sys
import traceback
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

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
    slots: Annotated[
        int | None, typer.Option(min=1, help="replays at a time on this machine; default: cores")
    ] = None,
    output: Annotated[Path, typer.Option(help="folder for the sweep's own folder")] = Path(
        "results"
    ),
    json: Annotated[
        bool, typer.Option("--json", help="one JSON document on stdout, progress on stderr")
    ] = False,
) -> None:
    """Run one sweep and print its best deployments."""
    from spica_async.cli.run import run_sweep_command  # noqa: PLC0415  # `--help` stays light

    raise typer.Exit(run_sweep_command(config, slots=slots, output=output, as_json=json))


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
