"""How the programs `spica-async` and `spica-worker` begin, and what they end with."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from spica_async.errors import (
    InputError,
    NothingFeasibleError,
    SpicaError,
    TimeUpError,
    file_problem,
    unforeseen,
)
from spica_async.exit_codes import EXIT_BAD_INPUT, EXIT_FAULT, EXIT_INTERRUPTED, EXIT_NOTHING_FOUND
from spica_async.processes.threads import leaving_threads_behind


def run_as_program(app: typer.Typer) -> None:
    """Be the program whose command line this is."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that has not all the characters should cost none of the result.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    with leaving_threads_behind():
        run_app(app)


def run_app(app: typer.Typer, arguments: Sequence[str] | None = None) -> None:
    """Run a command line; what a person can act on is one message, never a traceback.

    Args:
        app: the command line.
        arguments: without the program's name; None: those of this process.

    Raises:
        SystemExit: with the exit code.
    """
    try:
        _check_current_folder()
        app(args=arguments)
    except InputError as error:
        _exit(error, EXIT_BAD_INPUT)
    except (NothingFeasibleError, TimeUpError) as error:
        _exit(error, EXIT_NOTHING_FOUND)
    except SpicaError as error:
        _exit(error, EXIT_FAULT)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:  # noqa: BLE001  # a bug of ours: not for the user
        _exit(SpicaError(unforeseen(error)), EXIT_FAULT)


def _check_current_folder() -> None:
    """Refuse a current folder that was removed: neither paths nor child processes work from it."""
    try:
        Path.cwd()
    except OSError as error:
        raise InputError(f"the current folder: {file_problem(error)}; go to another") from error


def _exit(error: SpicaError, code: int) -> None:
    sys.stderr.write(f"error: {error}\n")
    sys.exit(code)
