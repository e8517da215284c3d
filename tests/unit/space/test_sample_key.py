"""Samples that are one and the same replay have one key, and others have not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from schemas.messages import Sample
from spica_async.space.pool import ParallelConfig, RoleDeployment
from spica_async.space.sample import (
    sample_key,
)
from spica_async.space.shapes import ParallelShape

Unroll = Callable[..., Sample]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # The same policy by its name and written out.
        (
            {"planner_scaling_policy": ["load_180_5"]},
            {
                "planner_scaling_policy": [
                    {
                        "enable_throughput_scaling": False,
                        "enable_load_scaling": True,
                        "throughput_adjustment_interval_seconds": 600,
                        "load_adjustment_interval_seconds": 5,
                    }
                ]
            },
        ),
        ({"gpu_budget": 8}, {"gpu_budget": 16, "min_gpu_budget": 2, "min_endpoint": 1}),
        ({"planner_load_sensitivity": ["default"]}, {"planner_load_sensitivity": ["aggressive"]}),
    ],
)
def test_what_cannot_reach_the_engine_is_not_in_the_key(
    unroll: Unroll, one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert sample_key(unroll(one)) == sample_key(unroll(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"planner_scaling_policy": ["load_180_5"]}, {"planner_scaling_policy": ["load_180_10"]}),
        ({"planner_scaling_policy": ["disabled"]}, {"planner_scaling_policy": ["load_180_5"]}),
        *(
            (
                {"planner_scaling_policy": [policy], knob: [first]},
                {"planner_scaling_policy": [policy], knob: [second]},
            )
            for policy, knob, first, second in (
                ("throughput_180_5", "planner_fpm_sampling", "small", "fine"),
                ("throughput_180_5", "planner_load_sensitivity", "default", "aggressive"),
                ("load_180_5", "planner_load_sensitivity", "default", "aggressive"),
            )
        ),
        # The planner may use what the budget leaves.
        *(
            (
                {"planner_scaling_policy": ["load_180_5"], "gpu_budget": 16},
                {"planner_scaling_policy": ["load_180_5"], "gpu_budget": 16, **limit},
            )
            for limit in ({"gpu_budget": 8}, {"min_gpu_budget": 2}, {"min_endpoint": 2})
        ),
        ({"agg_max_num_seqs": [256]}, {"agg_max_num_seqs": [512]}),
        ({"router_mode": ["kv_router"]}, {"router_mode": ["round_robin"]}),
        ({}, {"context_length": 4096}),
        ({}, {"startup_time": 3.0}),
        ({}, {"agg_block_size": 32}),
    ],
)
def test_what_reaches_the_engine_is_in_the_key(
    unroll: Unroll, one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert sample_key(unroll(one)) != sample_key(unroll(other))


def test_the_planners_target_is_in_the_key_while_a_planner_runs(unroll: Unroll) -> None:
    scaled = {"planner_scaling_policy": ["load_180_5"]}
    keys = {sample_key(unroll(scaled, planner_target=t)) for t in ("sla", "throughput")}
    assert len(keys) == 2
    assert len({sample_key(unroll(planner_target=t)) for t in ("sla", "throughput")}) == 1


def test_shapes_replicas_and_backends_are_in_the_key(unroll: Unroll) -> None:
    def single(shape: ParallelShape, replicas: int) -> ParallelConfig:
        return ParallelConfig((("agg", RoleDeployment(shape, replicas)),))

    selections = [
        (single(ParallelShape(4), 1), "vllm"),
        (single(ParallelShape(4), 2), "vllm"),
        (single(ParallelShape(2), 2), "vllm"),
        (single(ParallelShape(4), 1), "sglang"),
        (single(ParallelShape(4, moe_ep=4), 1), "vllm"),
        (single(ParallelShape(4, moe_tp=4), 1), "vllm"),
    ]
    base = unroll()
    keys = set()
    for config, backend in selections:
        shape = config["agg"].shape
        changed = {
            **base,
            "backend": backend,
            "tp": shape.tp,
            "moe_tp": shape.moe_tp,
            "moe_ep": shape.moe_ep,
            "replicas": config["agg"].replicas,
        }
        keys.add(sample_key(changed))
        # Names and sums say nothing new.
        assert sample_key(changed | {"strategy": "x", "used_gpus": 99}) in keys
    assert len(keys) == len(selections)


def test_the_key_depends_on_no_order_of_the_fields(unroll: Unroll) -> None:
    sample = unroll()
    assert sample_key(dict(reversed(sample.items()))) == sample_key(sample)
