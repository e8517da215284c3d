"""What the terminal shows of a daemon's sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import typer
from pydantic import TypeAdapter, ValidationError
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from schemas.daemon import SweepDetail, SweepSummary
from schemas.goal import OptimizationGoal, OptimizationTarget
from schemas.lifecycle import (
    BranchEnumerated,
    CandidateMeasured,
    SweepEvent,
    SweepFailed,
    SweepFinished,
    SweepPaused,
    SweepStarted,
)
from spica_async.errors import SpicaError
from spica_async.exit_codes import EXIT_INTERRUPTED, sweep_exit_code
from spica_async.judge.sweep_result import is_useful
from spica_async.report.screen import candidate_line
from spica_async.report.tables import candidates_table, print_view, tally_text
from spica_async.report.units import figure, seconds
from spica_async.service.client import DaemonClient
from spica_async.service.following import follow

_UNREAD_GOAL: Final = "its goal cannot be read by this version, so candidates are not shown"
_SUMMARIES: Final[TypeAdapter[list[SweepSummary]]] = TypeAdapter(list[SweepSummary])


def print_sweeps(sweeps: list[SweepSummary], *, as_json: bool) -> None:
    """Print a line for each sweep."""
    if as_json:
        typer.echo(_SUMMARIES.dump_json(sweeps, indent=2).decode())
    else:
        print_view(_list_view(sweeps))


def watch_sweep(client: DaemonClient, sweep_id: str, *, as_json: bool) -> int:
    """Print a line for each candidate until the sweep ends, then the sweep.

    Returns:
        The exit code, as `run` has it.

    Raises:
        InputError: there is no such sweep.
        SpicaError: the daemon does not answer any more.
    """
    sweep = client.sweep(sweep_id)
    goal = _goal(sweep)
    if goal is None:
        raise SpicaError(f"sweep {sweep_id}: {sweep.reason or _UNREAD_GOAL}")
    try:
        for event in follow(client, sweep_id, lambda line: typer.echo(line, err=True)):
            if (line := _line(event, goal)) is not None:
                # Beside a document, lines are no result.
                typer.echo(line, err=as_json)
        detail = client.sweep(sweep_id)
    except KeyboardInterrupt:
        typer.echo(f"no longer watched; {sweep_id} goes on", err=True)
        return EXIT_INTERRUPTED
    print_sweep(detail, as_json=as_json)
    return sweep_exit_code(
        detail.state, useful=any(is_useful(one.objectives, goal) for one in detail.best)
    )


def _line(event: SweepEvent, goal: OptimizationGoal) -> str | None:
    """What is said of an event; none: another event says it."""
    line = None
    match event.data:
        case CandidateMeasured(candidate=record):
            line = f"[{seconds(record.found_seconds)}] {candidate_line(record, goal)}"
        case SweepStarted(run=run):
            line = "started" if run == 1 else f"started again (run {run})"
        case BranchEnumerated() as branch:
            what = f"{figure(branch.configurations)} parallel configurations"
            line = f"{branch.branch}: {what} for {', '.join(branch.backends)}"
        case SweepFinished(result=result):
            line = f"{result.status}: {result.reason}"
        case SweepFailed(reason=reason):
            line = f"failed: {reason}"
        case SweepPaused(kind=kind, reason=reason):
            line = f"{kind.removeprefix('sweep.')}: {reason}"
    return line


def print_sweep(sweep: SweepDetail, *, as_json: bool) -> None:
    """Print one sweep: its branches, what became of its suggestions, and the ten best."""
    if as_json:
        typer.echo(sweep.model_dump_json(indent=2))
    else:
        print_view(_sweep_view(sweep))


def _goal(sweep: SweepDetail) -> OptimizationGoal | None:
    """What is searched for; None: a daemon or a client of another version cannot read it."""
    try:
        return OptimizationGoal.model_validate(sweep.config.get("goal"))
    except ValidationError:
        return None


def _list_view(sweeps: Sequence[SweepSummary]) -> RenderableType:
    priority, best = Column("priority", justify="right"), Column("best", justify="right")
    rest = ("target", "model", "hardware", "submitted")
    table = Table("sweep", "state", priority, "unique", best, *rest)
    for sweep in sweeps:
        table.add_row(
            sweep.sweep_id,
            sweep.state,
            str(sweep.priority),
            f"{sweep.feasible}" if sweep.budget is None else f"{sweep.feasible}/{sweep.budget}",
            _best(sweep),
            sweep.target,
            sweep.model,
            sweep.hardware,
            f"{sweep.submitted_at.astimezone():%Y-%m-%d %H:%M}",
        )
    return table


def _best(sweep: SweepSummary) -> str:
    """The best value, where a latency is a latency and not a negated score."""
    if sweep.best_score is None:
        return "-"
    latency = sweep.target == OptimizationTarget.E2E_LATENCY.value
    return figure(-sweep.best_score if latency else sweep.best_score)


def _sweep_view(sweep: SweepDetail) -> RenderableType:
    """What `show` shows."""
    goal = _goal(sweep)
    why = "" if sweep.reason is None else f": {sweep.reason}"
    who = "" if sweep.runner is None else f", run by {sweep.runner}"
    parts: list[RenderableType] = [
        Text(f"{sweep.sweep_id} is {sweep.state}{why}"),
        *([] if goal is not None else [Text(_UNREAD_GOAL)]),
        Text(f"{sweep.model} on {sweep.hardware} for {sweep.target}, priority {sweep.priority}"),
    ]
    if sweep.branches:
        parts.append(_branches_table(sweep))
    if sweep.best and goal is not None:
        parts.append(candidates_table(sweep.best, goal, of=sweep.feasible, baseline=sweep.baseline))
    parts += [
        Text(tally_text(sweep.tally)),
        Text(f"took {seconds(sweep.elapsed_seconds)} so far{who}"),
        Text(f"results in {sweep.results_dir}"),
    ]
    return Group(*parts)


def _branches_table(sweep: SweepDetail) -> Table:
    table = Table("branch", "phase", "round", "unique", "suggestions", "in flight")
    for branch in sweep.branches:
        table.add_row(
            branch.branch,
            branch.phase,
            str(branch.round),
            f"{branch.found}/{branch.target}",
            str(branch.attempts),
            str(branch.in_flight),
        )
    return table
