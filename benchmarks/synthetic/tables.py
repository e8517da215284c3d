"""The records as tables, and the goals that they are held against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from rich.table import Table

from synthetic.measuring import BATCH, Ask, Record
from synthetic.spaces import PROBLEMS

CHECKPOINTS = (32, 64, 128)
"""Evaluations after which a search's quality is told."""

_KINDS = {1: "best", 2: "hypervolume"}
_MOST_SECONDS = {64: 0.2, 128: 0.6}
"""For a warm suggestion of the fast profile at so many told trials."""
_MOST_MB = 1500.0

_ALIKE = 0.001
"""Shares of the optimum that differ by less are alike: nobody measures a deployment so exactly."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal of the fast profile and what became of it."""

    subject: str
    measured: str
    wanted: str
    is_met: bool


def quality_table(records: Sequence[Record]) -> Table:
    """The share of the optimum that each contender reached, by evaluations."""
    table = Table(
        title="Quality: share of the optimum in %, the median and, in brackets, each seed's",
        caption="An asterisk marks the best median of a row, before rounding.",
    )
    contenders = _unique(record.task.contender for record in records)
    table.add_column("space")
    table.add_column("after", justify="right")
    for contender in contenders:
        table.add_column(contender, justify="right")
    for (space, objectives), group in _grouped(records):
        for checkpoint in CHECKPOINTS:
            shares = [_shares(group, contender, checkpoint) for contender in contenders]
            best = max((median(each) for each in shares if each), default=0.0)
            table.add_row(
                f"{space}, {_KINDS[objectives]}" if checkpoint == CHECKPOINTS[0] else "",
                str(checkpoint),
                *(_shares_text(each, best) for each in shares),
                end_section=checkpoint == CHECKPOINTS[-1],
            )
    return table


def search_cost_table(records: Sequence[Record]) -> Table:
    """What whole searches cost, imports and compilation included."""
    table = Table(title="CPU of a search in a new process: s in all, and s per suggestion")
    contenders = _unique(record.task.contender for record in records)
    table.add_column("space")
    for contender in contenders:
        table.add_column(contender, justify="right")
    for (space, objectives), group in _grouped(records):
        cells = []
        for contender in contenders:
            costs = [r for r in group if r.task.contender == contender]
            whole = median(r.cpu_seconds for r in costs) if costs else 0.0
            each = median(r.cpu_seconds / r.task.trials for r in costs) if costs else 0.0
            cells.append(f"{whole:.1f}  {each:.3f}" if costs else "")
        table.add_row(f"{space}, {_KINDS[objectives]}", *cells)
    return table


def speed_table(records: Sequence[Record]) -> Table:
    """Seconds per suggestion by the number of told trials."""
    table = Table(title=f"Seconds per suggestion in batches of {BATCH}: CPU (on the clock)")
    for column in ("contender", "objectives", "told", "first in process", "warm"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for record in records:
        first, *warm = record.asks
        table.add_row(
            record.task.contender,
            str(record.task.objectives),
            str(record.task.trials),
            _seconds([first]),
            _seconds(warm),
        )
    return table


def memory_table(records: Sequence[Record]) -> Table:
    """Resident memory over a long search."""
    table = Table(title="Memory of the optimizer process over a search, 10**6 bytes")
    for column in ("contender", "objectives", "trials", "peak", "at the end", "after 64/128/256"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for record in records:
        # An ask of a batch ends with its memory.
        on_the_way = [record.memory_mb[n // BATCH - 1] for n in (64, 128, 256)]
        table.add_row(
            record.task.contender,
            str(record.task.objectives),
            str(record.task.trials),
            f"{record.peak_mb:,.0f}",
            f"{record.memory_mb[-1]:,.0f}",
            " / ".join(f"{mb:,.0f}" for mb in on_the_way),
        )
    return table


def goals(records: Sequence[Record]) -> list[Goal]:
    """What the fast profile is held to, as far as it was measured."""
    found = []
    quality = [record for record in records if record.task.part == "quality"]
    last = CHECKPOINTS[-1]
    for (space, objectives), group in _grouped(quality):
        ours = _shares(group, "fast", last)
        for rival in ("random", "optuna_tpe", "optuna_gp"):
            theirs = _shares(group, rival, last)
            if ours and theirs:
                found.append(
                    Goal(
                        f"{space}, {_KINDS[objectives]} after {last}: fast against {rival}",
                        f"{100 * median(ours):.1f} %",
                        f"at least {100 * median(theirs):.1f} %",
                        median(ours) >= median(theirs) - _ALIKE,
                    )
                )
    for record in records:
        task = record.task
        if task.contender != "fast":
            continue
        kind = f"{task.objectives} objective{'s' if task.objectives > 1 else ''}"
        if task.part == "speed" and task.trials in _MOST_SECONDS:
            seconds, most = _warm_seconds(record), _MOST_SECONDS[task.trials]
            found.append(
                Goal(
                    f"warm suggestion at {task.trials} trials, {kind}",
                    f"{seconds:.2f} s",
                    f"at most {most:g} s",
                    seconds <= most,
                )
            )
        if task.part == "memory":
            found.append(
                Goal(
                    f"memory over {task.trials} trials, {kind}",
                    f"{record.peak_mb:,.0f} MB",
                    f"below {_MOST_MB:,.0f} MB",
                    record.peak_mb < _MOST_MB,
                )
            )
    return found


def goals_table(found: Sequence[Goal]) -> Table:
    """The goals with their verdicts."""
    table = Table(
        title="Goals of the fast profile",
        caption=f"Shares of the optimum that differ by less than {_ALIKE:.1%} are taken as alike.",
    )
    for column in ("subject", "measured", "wanted", "verdict"):
        table.add_column(column)
    for goal in found:
        verdict = "[green]met[/]" if goal.is_met else "[red]missed[/]"
        table.add_row(goal.subject, goal.measured, goal.wanted, verdict)
    return table


def _shares(records: Iterable[Record], contender: str, evaluations: int) -> list[float]:
    """One share of the optimum for each seed, by ascending seed."""
    chosen = [
        record
        for record in records
        if record.task.contender == contender and len(record.values) >= evaluations
    ]
    chosen.sort(key=lambda record: record.task.seed)
    return [
        PROBLEMS[record.task.space].quality(record.values[:evaluations], record.task.objectives)
        for record in chosen
    ]


def _shares_text(shares: Sequence[float], best: float) -> str:
    if not shares:
        return ""
    mark = "*" if median(shares) == best else ""
    each = " ".join(f"{100 * share:.0f}" for share in shares)
    return f"{mark}{100 * median(shares):.1f}" + (f" ({each})" if len(shares) > 1 else "")


def _seconds(asks: Sequence[Ask]) -> str:
    cpu = median(ask.cpu_seconds for ask in asks) / BATCH
    wall = median(ask.wall_seconds for ask in asks) / BATCH
    return f"{cpu:.3f} ({wall:.3f})"


def _warm_seconds(record: Record) -> float:
    """CPU seconds per suggestion once everything is compiled."""
    return median(ask.cpu_seconds for ask in record.asks[1:]) / BATCH


def _grouped(records: Sequence[Record]) -> list[tuple[tuple[str, int], list[Record]]]:
    """The records of each space and number of objectives."""
    kinds = _unique((record.task.space, record.task.objectives) for record in records)
    return [
        (kind, [r for r in records if (r.task.space, r.task.objectives) == kind]) for kind in kinds
    ]


def _unique(items: Iterable[_T]) -> list[_T]:
    return list(dict.fromkeys(items))
