"""How branches and sweeps are said to have ended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from schemas.config import SweepControl
from schemas.goal import OptimizationGoal, OptimizationTarget, SLATarget
from schemas.results import BranchEnd, BranchResult, SweepStatus, Tally
from spica_async.judge.sweep_result import (
    CutShort,
    is_useful,
    no_better,
    sum_tallies,
    sweep_reason,
    sweep_status,
)

SWEEP = SweepControl(max_seconds=2.5, patience=7, min_improvement=0.01)


@pytest.mark.parametrize(
    ("ends", "interrupted", "useful", "status"),
    [
        (["completed", "completed"], True, True, "interrupted"),
        (["time_limit", "completed"], False, False, "time_limit"),
        (["completed", "exhausted"], False, False, "nothing_feasible"),
        (["completed", "stalled", "converged"], False, True, "stalled"),
        (["completed", "converged"], False, True, "converged"),
        (["completed", "failed"], False, True, "completed"),
        (["exhausted", "failed"], False, True, "exhausted"),
    ],
)
def test_the_status_of_a_sweep(
    ends: Sequence[BranchEnd], status: SweepStatus, *, interrupted: bool, useful: bool
) -> None:
    assert sweep_status(ends, interrupted=interrupted, useful=useful) == status


@pytest.mark.parametrize(
    ("cut_short", "converged", "reason"),
    [
        ("time_limit", False, "max_seconds, 2.5, were up"),
        ("interrupted", False, "it was stopped"),
        (None, True, no_better(SWEEP, "of all branches")),
        (None, False, "agg stalled: why"),
    ],
)
def test_the_reason_of_a_sweep(cut_short: CutShort | None, reason: str, *, converged: bool) -> None:
    branch = BranchResult(
        branch="agg",
        end="stalled",
        reason="why",
        rounds=1,
        tally=Tally(),
        optimizer_seconds=0.0,
        evaluation_seconds=0.0,
    )
    assert sweep_reason([branch], SWEEP, cut_short, converged=converged) == reason


def test_each_branch_has_its_reason() -> None:
    branches = [
        BranchResult(
            branch=mode,
            end="completed",
            reason="why",
            rounds=1,
            tally=Tally(),
            optimizer_seconds=0.0,
            evaluation_seconds=0.0,
        )
        for mode in ("agg", "disagg")
    ]
    reason = sweep_reason(branches, SWEEP, None, converged=False)
    assert reason == "agg completed: why; disagg completed: why"


@pytest.mark.parametrize(("least", "by"), [(0.01, " by more than 1.00%"), (0.0, "")])
def test_lost_patience_is_counted(least: float, by: str) -> None:
    sweep = SWEEP.model_copy(update={"min_improvement": least})
    assert no_better(sweep, "here") == f"7 candidates here did not make the best of it better{by}"


@pytest.mark.parametrize(("value", "useful"), [(0.0, False), (0.001, True)])
def test_a_candidate_is_useful_once_any_request_met_the_sla(value: float, *, useful: bool) -> None:
    counts = OptimizationGoal(target=OptimizationTarget.GOODPUT, sla=SLATarget(e2e_ms=1.0))
    assert is_useful({"goodput": value}, counts) == useful
    assert is_useful({"throughput": 0.0}, OptimizationGoal(target=OptimizationTarget.THROUGHPUT))


def test_tallies_are_summed_by_name_and_by_cause() -> None:
    one = Tally(attempts=3, failed=2, causes={"replay_error": 1, "time_limit": 1})
    other = Tally(attempts=2, feasible=1, failed=1, causes={"replay_error": 1})
    assert sum_tallies([one, other]) == Tally(
        attempts=5, feasible=1, failed=3, causes={"replay_error": 2, "time_limit": 1}
    )
