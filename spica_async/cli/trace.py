"""`spica-async trace synth`: a small bursty trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spica_async.errors import InputError, file_problem


def synth(
    path: Annotated[Path, typer.Argument(help="the file to write", metavar="OUTPUT")],
    *,
    seed: Annotated[int, typer.Option(help="the same seed makes the same trace")] = 1,
    requests: Annotated[int, typer.Option(min=1, help="how many")] = 1000,
    duration: Annotated[float, typer.Option(min=1, help="seconds of arrivals")] = 600.0,
) -> None:
    """Write a small bursty trace."""
    from spica_async.traces.synth import SynthConfig, write_trace

    try:
        write_trace(path, SynthConfig(seed=seed, requests=requests, duration_seconds=duration))
    except ValueError as error:
        raise InputError(f"trace synth: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: {file_problem(error)}") from None
    typer.echo(f"wrote {requests} requests over {duration:g} s to {path}")
