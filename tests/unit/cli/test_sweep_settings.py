"""The settings of a sweep that concern its schedule, its optimizer and its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from schemas.config import SmartSearchConfig, SweepControl
from schemas.results import (
    BranchResult,
    Tally,
)
from spica_async.exit_codes import sweep_exit_code
from spica_async.judge.sweep_result import CutShort, sweep_reason, sweep_status


@pytest.mark.parametrize(
    ("sweep", "problem"),
    [
        ({"schedule": "later"}, "sweep.schedule: input should be 'rounds' or 'continuous'"),
        ({"optimizer": {"profile": "slow"}}, "sweep.optimizer.profile: input should be 'fast'"),
        ({"optimizer": {"max_memory_mb": 100}}, "sweep.optimizer.max_memory_mb: input should be"),
        (
            {"optimizer": {"profile": "random", "max_memory_mb": 800}},
            "sweep.optimizer.max_memory_mb: profile random has no process to limit",
        ),
        ({"optimizer": {"profil": "fast"}}, "sweep.optimizer.profil: unknown key; did you mean"),
        ({"warm_start": "maybe"}, "sweep.warm_start: input should be a valid boolean"),
        (
            {"optimizer": {"profile": "random"}, "suggest_timeout_seconds": 9.0},
            "sweep.suggest_timeout_seconds: profile random takes no time to limit",
        ),
        ({"max_seconds": 0}, "sweep.max_seconds: input should be greater than 0"),
        ({"patience": 0}, "sweep.patience: input should be greater than or equal to 1"),
        ({"min_improvement": 0.1}, "sweep.min_improvement: has no effect without patience"),
        (
            {"patience": 3, "min_improvement": -0.1},
            "sweep.min_improvement: input should be greater than or equal to 0",
        ),
    ],
)
def test_one_problem_names_its_field(
    problem_of: Callable[..., str], sweep: Mapping[str, Any], problem: str
) -> None:
    assert problem_of(sweep=sweep).startswith(problem)


def test_off_is_written_as_yaml_writes_it(
    load: Callable[[str | bytes], SmartSearchConfig],
) -> None:
    text = """
search_space: {model_name: a/model, hardware_sku: some_gpu}
workload: {concurrency: 4, isl: 1000, osl: 100, num_request_ratio: 2.0}
sweep: {warm_start: off, schedule: continuous, optimizer: {profile: vizier_default}}
"""
    sweep = load(text).sweep
    assert sweep.warm_start is False
    assert (sweep.schedule, sweep.optimizer.profile) == ("continuous", "vizier_default")


def branch(mode: str, end: Any, reason: str) -> BranchResult:
    return BranchResult(
        branch=mode,
        end=end,
        reason=reason,
        rounds=1,
        tally=Tally(),
        optimizer_seconds=0.0,
        evaluation_seconds=0.0,
    )


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        (["completed", "exhausted"], "completed"),
        (["exhausted", "exhausted"], "exhausted"),
        (["converged", "completed"], "converged"),
        (["converged", "stalled"], "stalled"),
        (["time_limit", "completed"], "time_limit"),
    ],
)
def test_the_least_finished_branch_names_the_sweep(ends: list[Any], status: str) -> None:
    assert sweep_status(ends, interrupted=False, useful=True) == status
    assert sweep_status(ends, interrupted=True, useful=True) == "interrupted"
    nothing = sweep_status(ends, interrupted=False, useful=False)
    assert nothing == ("time_limit" if status == "time_limit" else "nothing_feasible")


@pytest.mark.parametrize(
    ("state", "useful", "code"),
    [
        ("completed", True, 0),
        ("time_limit", True, 0),
        ("time_limit", False, 3),
        ("nothing_feasible", False, 3),
        ("failed", False, 1),
        ("interrupted", True, 130),
        ("cancelled", True, 130),
        ("paused", True, 130),
    ],
)
def test_the_exit_code_is_0_only_where_something_serves_the_goal(
    state: str, *, useful: bool, code: int
) -> None:
    assert sweep_exit_code(state, useful=useful) == code


@pytest.mark.parametrize(
    ("cut_short", "converged", "reason"),
    [
        (None, False, "agg completed: found it; disagg exhausted: saw all"),
        (None, True, "9 candidates of all branches did not make the best of it better by more "),
        ("time_limit", False, "max_seconds, 60, were up"),
        ("interrupted", True, "it was stopped"),
    ],
)
def test_the_summary_says_why_it_ended(
    cut_short: CutShort | None, *, converged: bool, reason: str
) -> None:
    sweep = SweepControl(max_seconds=60, patience=9, min_improvement=0.01)
    branches = [branch("agg", "completed", "found it"), branch("disagg", "exhausted", "saw all")]
    message = sweep_reason(branches, sweep, cut_short, converged=converged)
    assert message.startswith(reason)
