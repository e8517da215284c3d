"""`spica-async run` and `resume`: one sweep from this shell, over the embedded bus or a broker."""

from __future__ import annotations

from typing import Annotated

import typer

from spica_async.cli.daemon import give_order
from spica_async.cli.options import (
    AsJson,
    Changes,
    ConfigPath,
    DaemonFlags,
    NoCache,
    SweepFlags,
    TokenFile,
)


def run(
    config: ConfigPath,
    *,
    changes: Changes = None,
    flags: SweepFlags,
    no_cache: NoCache = False,
    json: AsJson = False,
) -> None:
    """Run one sweep and print its best deployments.

    Replays run in this machine's processes, or with --bus where workers are.
    """
    from spica_async.cli.sweep import RunOptions, run_new_sweep
    from spica_async.config.load import load_config

    options = RunOptions.read(flags, use_cache=not no_cache)
    raise typer.Exit(run_new_sweep(load_config(config, changes or ()), options, as_json=json))


def resume(
    sweep: Annotated[str, typer.Argument(help="the name of the sweep's folder", metavar="SWEEP")],
    *,
    flags: SweepFlags,
    no_cache: NoCache = False,
    json: AsJson = False,
    daemon: Annotated[
        str | None,
        typer.Option(
            help="have this tuning daemon go on with a sweep of its own, in its own way: of the"
            " other options only --token-file and --json count then",
            metavar="URL",
        ),
    ] = None,
    token_file: TokenFile = None,
) -> None:
    """Go on with a sweep that was interrupted or has crashed, where it was left.

    What has been measured is not measured again. A sweep that has ended is shown once more.
    """
    if daemon is not None:
        give_order("resume", sweep, DaemonFlags(daemon=daemon, token_file=token_file), as_json=json)
        return
    from spica_async.cli.sweep import RunOptions, resume_sweep

    options = RunOptions.read(flags, use_cache=not no_cache)
    raise typer.Exit(resume_sweep(sweep, options, as_json=json))
