"""`spica-async trace synth`: a small bursty trace."""

from __future__ import annotations

from pathlib import Path

import typer

from spica_async.errors import InputError, file_problem
from spica_async.traces.synth import SynthConfig, write_trace


def synth_command(path: Path, *, seed: int, requests: int, duration_seconds: float) -> None:
    """Write a trace and say what it holds.

    Raises:
        InputError: if no such trace can be made, or the file cannot be written.
    """
    try:
        write_trace(
            path, SynthConfig(seed=seed, requests=requests, duration_seconds=duration_seconds)
        )
    except ValueError as error:
        raise InputError(f"trace synth: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: {file_problem(error)}") from None
    typer.echo(f"wrote {requests} requests over {duration_seconds:g} s to {path}")
