"""What a goal means: direction, SLA, objectives, and the planner's own target."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from schemas.config import SmartSearchConfig
from schemas.goal import OptimizationGoal, OptimizationTarget, SLATarget

TOKEN_LEVELS = {"ttft_ms": 2000.0, "itl_ms": 50.0}
NO_SLA = "counts the requests that meet an SLA: set e2e_ms, or both ttft_ms and itl_ms"


@pytest.mark.parametrize(
    ("target", "maximize", "needs_sla", "planner_target"),
    [
        ("throughput", True, False, "throughput"),
        ("throughput_per_gpu", True, False, "throughput"),
        ("throughput_per_user", True, False, "throughput"),
        ("e2e_latency", False, False, "latency"),
        ("goodput", True, True, "sla"),
        ("goodput_per_gpu", True, True, "sla"),
    ],
)
def test_each_target_has_a_direction_and_a_target_for_the_planner(
    target: str,
    maximize: bool,  # noqa: FBT001  # a parameter of the test
    needs_sla: bool,  # noqa: FBT001  # a parameter of the test
    planner_target: str,
) -> None:
    found = OptimizationTarget(target)
    assert found.maximize is maximize
    assert found.needs_sla is needs_sla
    assert found.planner_optimization_target == planner_target


def test_pareto_has_no_single_direction_and_plans_for_throughput() -> None:
    with pytest.raises(ValueError, match="no single direction"):
        _ = OptimizationTarget.PARETO.maximize
    assert not OptimizationTarget.PARETO.needs_sla
    assert OptimizationTarget.PARETO.planner_optimization_target == "throughput"


@pytest.mark.parametrize(
    ("sla", "has_token_levels", "supports_goodput"),
    [
        ({}, False, False),
        ({"ttft_ms": 1.0}, False, False),
        ({"itl_ms": 1.0}, False, False),
        ({"e2e_ms": 1.0}, False, True),
        (TOKEN_LEVELS, True, True),
        ({"itl_ms": 1.0, "e2e_ms": 1.0}, False, True),
    ],
    ids=str,
)
def test_goodput_takes_an_end_to_end_level_or_both_token_levels(
    problem_of: Callable[..., str],
    load_blocks: Callable[..., SmartSearchConfig],
    sla: dict[str, float],
    has_token_levels: bool,  # noqa: FBT001  # a parameter of the test
    supports_goodput: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    assert SLATarget(**sla).has_token_levels is has_token_levels
    for target in ("goodput", "goodput_per_gpu"):
        goal = {"target": target, "sla": sla}
        if supports_goodput:
            assert load_blocks(goal=goal).goal.objectives == (target,)
        else:
            assert problem_of(goal=goal) == f"goal.sla: {target} {NO_SLA}"
        # Goodput may also be one objective of several.
        pareto = {"target": "pareto", "pareto_objectives": ["throughput", target], "sla": sla}
        if supports_goodput:
            assert load_blocks(goal=pareto).goal.objectives == ("throughput", target)
        else:
            assert problem_of(goal=pareto) == f"goal.sla: {target} {NO_SLA}"


@pytest.mark.parametrize("target", ["goodput", "goodput_per_gpu"])
def test_goodput_without_any_sla_is_refused(problem_of: Callable[..., str], target: str) -> None:
    assert problem_of(goal={"target": target}) == f"goal.sla: {target} {NO_SLA}"


def test_other_targets_take_an_sla_and_need_none() -> None:
    for target in OptimizationTarget:
        if not target.needs_sla:
            assert OptimizationGoal(target=target).sla is None
            assert OptimizationGoal(target=target, sla=SLATarget(ttft_ms=1.0)).sla is not None


def test_pareto_traces_throughput_per_gpu_against_per_user_by_default() -> None:
    default = OptimizationGoal(target=OptimizationTarget.PARETO)
    assert default.objectives == ("throughput_per_gpu", "throughput_per_user")
    listed = OptimizationGoal(
        target=OptimizationTarget.PARETO,
        pareto_objectives=[OptimizationTarget.E2E_LATENCY, OptimizationTarget.THROUGHPUT],
    )
    assert listed.objectives == ("e2e_latency", "throughput")


@pytest.mark.parametrize(
    ("goal", "expected"),
    [
        ({"target": "pareto", "pareto_objectives": []}, "list two or more distinct targets"),
        ({"target": "pareto", "pareto_objectives": ["throughput"]}, "list two or more distinct"),
        (
            {"target": "pareto", "pareto_objectives": ["throughput", "throughput"]},
            "list two or more distinct targets",
        ),
        (
            {
                "target": "pareto",
                "pareto_objectives": ["throughput", "e2e_latency", "e2e_latency"],
            },
            "list two or more distinct targets",
        ),
        (
            {"target": "pareto", "pareto_objectives": ["throughput", "pareto"]},
            "pareto cannot be an objective of itself",
        ),
        (
            {"target": "throughput", "pareto_objectives": ["throughput", "e2e_latency"]},
            "only legal with target: pareto",
        ),
    ],
    ids=str,
)
def test_pareto_objectives_are_two_or_more_distinct_scalars(
    problem_of: Callable[..., str], goal: dict[str, Any], expected: str
) -> None:
    assert problem_of(goal=goal).startswith(f"goal.pareto_objectives: {expected}")


@pytest.mark.parametrize("level", ["ttft_ms", "itl_ms", "e2e_ms"])
@pytest.mark.parametrize("bad", [0, -1.0, float("nan"), float("inf"), True, "5"])
def test_a_service_level_is_a_positive_number(
    problem_of: Callable[..., str], level: str, bad: object
) -> None:
    found = problem_of(goal={"target": "throughput", "sla": {level: bad}})
    assert found.startswith(f"goal.sla.{level}: input should be ")


def test_an_unknown_target_is_answered_with_the_known_ones(problem_of: Callable[..., str]) -> None:
    found = problem_of(goal={"target": "latency"})
    assert found.startswith("goal.target: input should be 'throughput', 'throughput_per_gpu', ")
    for target in OptimizationTarget:
        assert f"'{target}'" in found
