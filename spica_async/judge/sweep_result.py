"""How branches and sweeps have ended, in the words of their result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from schemas.config import SweepControl
from schemas.goal import OptimizationGoal, OptimizationTarget
from schemas.results import (
    BranchEnd,
    BranchResult,
    SweepStatus,
    Tally,
)

CutShort = Literal["interrupted", "time_limit"]
"""What ended a sweep from outside before its branches had ended."""


def sweep_status(ends: Iterable[BranchEnd], *, interrupted: bool, useful: bool) -> SweepStatus:
    """What to call a sweep by how its branches ended.

    Args:
        ends: the end of each branch.
        interrupted: whether it was stopped from outside.
        useful: whether some candidate serves the goal at all.
    """
    if interrupted:
        return "interrupted"
    known = set(ends)
    if "time_limit" in known:
        return "time_limit"
    if not useful:
        return "nothing_feasible"
    if "stalled" in known:
        return "stalled"
    if "converged" in known:
        return "converged"
    return "completed" if "completed" in known else "exhausted"


def sweep_reason(
    branches: Sequence[BranchResult],
    sweep: SweepControl,
    cut_short: CutShort | None,
    *,
    converged: bool,
) -> str:
    """Why the sweep ended, in one line.

    Args:
        branches: how each of them ended.
        sweep: the limits that were set.
        cut_short: what ended the sweep from outside, if something did.
        converged: whether the patience of the sweep as a whole was lost.
    """
    if cut_short == "time_limit":
        return f"max_seconds, {sweep.max_seconds:g}, were up"
    if cut_short == "interrupted":
        return "it was stopped"
    if converged:
        return no_better(sweep, "of all branches")
    return "; ".join(f"{branch.branch} {branch.end}: {branch.reason}" for branch in branches)


def is_useful(
    objectives: Mapping[str, float] | Mapping[OptimizationTarget, float], goal: OptimizationGoal
) -> bool:
    """Whether any request of a candidate met the SLA, where the goal counts those that do.

    Args:
        objectives: of the candidate, by target.
        goal: that they are the objectives of.
    """
    return all(objectives[target] > 0 for target in goal.objectives if target.needs_sla)


def sum_tallies(tallies: Iterable[Tally]) -> Tally:
    """The suggestions of several branches, by what became of them."""
    total = Tally().model_dump()
    for tally in tallies:
        for name, value in tally.model_dump().items():
            if name == "causes":
                for cause, count in value.items():
                    total["causes"][cause] = total["causes"].get(cause, 0) + count
            else:
                total[name] += value
    return Tally.model_validate(total)


def no_better(sweep: SweepControl, where: str) -> str:
    """Why a search was ended that had lost the patience of its sweep.

    Args:
        sweep: the limits that were set.
        where: whose candidates were counted, e.g. `of this branch`.
    """
    by = f" by more than {sweep.min_improvement:.2%}" if sweep.min_improvement else ""
    return f"{sweep.patience} candidates {where} did not make the best of it better{by}"
