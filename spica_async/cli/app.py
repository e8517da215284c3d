"""The program `spica-async`: its commands, put together."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from spica_async.cli import cache, daemon, trace
from spica_async.cli.accuracy import accuracy
from spica_async.cli.check import check
from spica_async.cli.compare import compare
from spica_async.cli.health import health
from spica_async.cli.options import flattened
from spica_async.cli.predict import predict
from spica_async.cli.prune import prune
from spica_async.cli.run import resume, run
from spica_async.cli.serve import serve
from spica_async.cli.topology import topology

app = typer.Typer(
    name="spica-async",
    help="Find the best NVIDIA Dynamo deployment; every candidate is scored by a real replay.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(flattened(run))
app.command()(flattened(resume))
app.command()(flattened(serve))
app.command()(flattened(daemon.submit))
app.command("list")(flattened(daemon.list_sweeps))
app.command()(flattened(daemon.show))
app.command()(flattened(daemon.watch))
app.command()(flattened(daemon.cancel))
app.command()(flattened(daemon.pause))
app.command()(flattened(daemon.remove))
app.command()(prune)
app.command()(check)
app.command()(predict)
app.command()(compare)
app.command()(accuracy)
app.command()(flattened(topology))
app.command()(flattened(health))

trace_app = typer.Typer(help="Request traces in Mooncake's format.", no_args_is_help=True)
trace_app.command()(trace.synth)
app.add_typer(trace_app, name="trace")

cache_app = typer.Typer(help="What need not be measured again.", no_args_is_help=True)
cache_app.command()(cache.stats)
cache_app.command()(cache.prune)
app.add_typer(cache_app, name="cache")


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
