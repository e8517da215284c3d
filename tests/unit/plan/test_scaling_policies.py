"""Which scaling policies a goal leaves to search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from schemas.config import SmartSearchConfig
from schemas.presets import SCALING_POLICIES
from spica_async.errors import InputError
from spica_async.plan.scaling_policies import FilteredPolicies, filter_scaling_policies

TOKEN_LEVELS = {"ttft_ms": 2000.0, "itl_ms": 50.0}
ALL = tuple(SCALING_POLICIES)
NO_THROUGHPUT = ("disabled", "load_180_5", "load_180_10")
CUSTOM = {
    "enable_throughput_scaling": True,
    "enable_load_scaling": False,
    "throughput_adjustment_interval_seconds": 240,
    "load_adjustment_interval_seconds": 5,
}
CUSTOM_STATIC = CUSTOM | {"enable_throughput_scaling": False}
CUSTOM_LOAD = CUSTOM_STATIC | {"enable_load_scaling": True}


@pytest.fixture
def filtered(make_config: Callable[..., SmartSearchConfig]) -> Callable[..., FilteredPolicies]:
    def filter_under(goal: dict[str, Any], policies: list[Any]) -> FilteredPolicies:
        return filter_scaling_policies(make_config({"planner_scaling_policy": policies}, goal=goal))

    return filter_under


@pytest.mark.parametrize(
    ("goal", "kept"),
    [
        ({"target": "goodput", "sla": TOKEN_LEVELS}, ALL),
        ({"target": "goodput_per_gpu", "sla": {**TOKEN_LEVELS, "e2e_ms": 1.0}}, ALL),
        # The planner cannot hold an end-to-end level, so nothing of it runs.
        ({"target": "goodput", "sla": {"e2e_ms": 9000.0}}, ("disabled",)),
        ({"target": "goodput", "sla": {"e2e_ms": 9000.0, "ttft_ms": 1.0}}, ("disabled",)),
        ({"target": "throughput"}, NO_THROUGHPUT),
        ({"target": "throughput_per_gpu", "sla": TOKEN_LEVELS}, NO_THROUGHPUT),
        ({"target": "throughput_per_user"}, NO_THROUGHPUT),
        ({"target": "e2e_latency", "sla": {"e2e_ms": 9000.0}}, NO_THROUGHPUT),
        ({"target": "pareto"}, NO_THROUGHPUT),
        (
            {
                "target": "pareto",
                "pareto_objectives": ["goodput", "throughput"],
                "sla": TOKEN_LEVELS,
            },
            NO_THROUGHPUT,
        ),
    ],
    ids=str,
)
def test_a_goal_keeps_the_policies_that_the_planner_can_run_under_it(
    filtered: Callable[..., FilteredPolicies], goal: dict[str, Any], kept: tuple[str, ...]
) -> None:
    found = filtered(goal, list(ALL))
    assert found.kept == kept
    assert found.dropped == tuple(policy for policy in ALL if policy not in kept)
    assert (found.reason is None) == (not found.dropped)


def test_a_policy_that_is_written_out_is_filtered_by_its_flags(
    filtered: Callable[..., FilteredPolicies],
) -> None:
    policies = [CUSTOM, CUSTOM_LOAD, CUSTOM_STATIC]
    assert filtered({"target": "throughput"}, policies).kept == (CUSTOM_LOAD, CUSTOM_STATIC)
    latency_only = {"target": "goodput", "sla": {"e2e_ms": 1.0}}
    assert filtered(latency_only, policies).kept == (CUSTOM_STATIC,)
    assert filtered(latency_only, policies).dropped == (CUSTOM, CUSTOM_LOAD)


@pytest.mark.parametrize(
    ("goal", "policies", "why"),
    [
        (
            {"target": "throughput"},
            ["throughput_180_5", "hybrid_600_5"],
            (
                "throughput scaling plans for an SLA, which goal throughput has not; "
                "disabled and load policies can be searched"
            ),
        ),
        (
            {"target": "goodput", "sla": {"e2e_ms": 1.0}},
            ["load_180_5", "hybrid_180_5", "throughput_600_5"],
            (
                "planner scaling needs goal.sla.ttft_ms and itl_ms; with e2e_ms alone only static "
                "policies such as disabled can be searched"
            ),
        ),
    ],
)
def test_a_goal_that_leaves_none_is_refused(
    filtered: Callable[..., FilteredPolicies],
    goal: dict[str, Any],
    policies: list[str],
    why: str,
) -> None:
    with pytest.raises(InputError) as refusal:
        filtered(goal, policies)
    assert str(refusal.value) == (
        f"search_space.planner_scaling_policy: none of the listed policies is left: {why}"
    )


def test_nothing_dropped_needs_no_reason(filtered: Callable[..., FilteredPolicies]) -> None:
    assert filtered({"target": "throughput"}, ["disabled"]) == FilteredPolicies(("disabled",))
