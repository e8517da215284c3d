"""`spica-async submit | list | show | watch | cancel | pause | remove`: a daemon's sweeps."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from spica_async.cli.options import AsJson, Changes, ConfigPath, DaemonFlags, NoCache, SweepId


def submit(
    config: ConfigPath,
    *,
    changes: Changes = None,
    flags: DaemonFlags,
    priority: Annotated[
        int, typer.Option(min=-100, max=100, help="higher begins first and gets more of the slots")
    ] = 0,
    no_cache: NoCache = False,
    watch: Annotated[bool, typer.Option("--watch", help="then do as `watch` does")] = False,
    json: AsJson = False,
) -> None:
    """Hand a sweep to a tuning daemon and print the sweep's id."""
    from schemas.daemon import SweepSubmission
    from spica_async.cli.daemon_views import watch_sweep
    from spica_async.config.load import load_config
    from spica_async.report.folder import config_document

    document = config_document(load_config(config, changes or ()))
    submission = SweepSubmission(config=document, priority=priority, use_cache=not no_cache)
    with flags.client() as client:
        sweep = client.submit(submission)
        if watch:
            typer.echo(sweep.sweep_id, err=json)
            raise typer.Exit(watch_sweep(client, sweep.sweep_id, as_json=json))
    typer.echo(sweep.model_dump_json(indent=2) if json else sweep.sweep_id)


def list_sweeps(
    *,
    state: Annotated[str | None, typer.Option(help="only those that are e.g. running")] = None,
    limit: Annotated[int, typer.Option(min=1, help="the latest so many", metavar="N")] = 1000,
    flags: DaemonFlags,
    json: AsJson = False,
) -> None:
    """List the sweeps of a tuning daemon, the latest first."""
    from spica_async.cli.daemon_views import print_sweeps

    with flags.client() as client:
        sweeps = client.sweeps(state, most=limit + 1)
    if len(sweeps) > limit:
        typer.echo(f"the latest {limit:,}; --limit N shows more", err=True)
    if sweeps or json:
        print_sweeps(sweeps[:limit], as_json=json)
    else:
        typer.echo("no sweeps" if state is None else f"no sweep is {state}")


def show(sweep: SweepId, *, flags: DaemonFlags, json: AsJson = False) -> None:
    """Show how far a sweep of a tuning daemon is, and its best deployments."""
    from spica_async.cli.daemon_views import print_sweep

    with flags.client() as client:
        print_sweep(client.sweep(sweep), as_json=json)


def watch(sweep: SweepId, *, flags: DaemonFlags, json: AsJson = False) -> None:
    """Follow a sweep of a tuning daemon to its end; the exit code is that of `run`."""
    from spica_async.cli.daemon_views import watch_sweep

    with flags.client() as client:
        raise typer.Exit(watch_sweep(client, sweep, as_json=json))


def cancel(sweep: SweepId, *, flags: DaemonFlags, json: AsJson = False) -> None:
    """End a sweep of a tuning daemon; what was found is kept, and only `resume` brings it back."""
    give_order("cancel", sweep, flags, as_json=json)


def pause(sweep: SweepId, *, flags: DaemonFlags, json: AsJson = False) -> None:
    """Pause a sweep of a tuning daemon until `resume --daemon`."""
    give_order("pause", sweep, flags, as_json=json)


def remove(sweep: SweepId, *, flags: DaemonFlags) -> None:
    """Have a tuning daemon forget a sweep that has ended or was stopped; its folder stays."""
    with flags.client() as client:
        client.remove(sweep)
    typer.echo(f"{sweep} is removed; its results are where they were")


def give_order(
    verb: Literal["cancel", "pause", "resume"], sweep_id: str, flags: DaemonFlags, *, as_json: bool
) -> None:
    """Cancel, pause or resume a sweep of a daemon, and print what it is now.

    Raises:
        InputError: there is no such sweep, or it is in no state for that.
        SpicaError: the daemon does not answer.
    """
    with flags.client() as client:
        sweep = client.order(verb, sweep_id)
    typer.echo(sweep.model_dump_json(indent=2) if as_json else f"{sweep.sweep_id} is {sweep.state}")
