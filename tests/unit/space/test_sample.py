"""The flat sample holds what is active and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.deployments import DENSE, PAIR

from schemas.config import SmartSearchConfig
from schemas.messages import Sample
from schemas.search_space import Backend
from spica_async.space.branch import Selection
from spica_async.space.pool import ParallelConfig, RoleDeployment
from spica_async.space.sample import static_sample
from spica_async.space.shapes import ParallelShape

Unroll = Callable[..., Sample]
OFFLOAD = {"num_g2_blocks": 8, "kv_bytes_per_token": 1024, "offload_batch_size": 4}
SCALING_KEYS = {
    *("throughput_adjustment_interval_seconds", "load_adjustment_interval_seconds"),
    *("max_num_fpm_samples", "fpm_sample_bucket_size"),
    *("load_scaling_down_sensitivity", "load_min_observations", "planner_optimization_target"),
}


def test_an_aggregate_static_sample_is_written_out_in_full(unroll: Unroll) -> None:
    assert unroll() == {
        "deployment_mode": "agg",
        "backend": "vllm",
        "is_moe": False,
        "model_name": "a/model",
        "hardware_sku": "some_gpu",
        "gpu_budget": 4,
        "num_g2_blocks": 0,
        "tp": 2,
        "pp": 1,
        "attention_dp": 1,
        "moe_tp": 1,
        "moe_ep": 1,
        "strategy": "tp",
        "replicas": 3,
        "used_gpus": 6,
        "agg_max_num_batched_tokens": 8192,
        "agg_max_num_seqs": 256,
        "agg_block_size": 64,
        "agg_gpu_memory_utilization": 0.9,
        "agg_enable_prefix_caching": True,
        "router_mode": "round_robin",
        "planner_scaling_policy": "disabled",
        "enable_throughput_scaling": False,
        "enable_load_scaling": False,
    }


def test_a_disaggregated_sample_prefixes_each_role_and_sums_the_gpus(unroll: Unroll) -> None:
    sample = unroll(config=PAIR, is_moe=True)
    shapes = {
        "prefill_": (4, 1, 1, 1, 4, "tep", 2),
        "decode_": (1, 1, 8, 1, 8, "dep", 1),
    }
    names = ("tp", "pp", "attention_dp", "moe_tp", "moe_ep", "strategy", "replicas")
    for prefix, values in shapes.items():
        assert tuple(sample[prefix + name] for name in names) == values
    assert sample["used_gpus"] == 16
    assert sample["is_moe"] is True
    engine = {
        "max_num_batched_tokens",
        "max_num_seqs",
        "block_size",
        "gpu_memory_utilization",
        "enable_prefix_caching",
    }
    prefixed = {f"{role}_{name}" for role in ("prefill", "decode") for name in engine}
    assert prefixed <= set(sample)
    assert not any(name.startswith("agg_") or name in names for name in sample)


def test_scalars_that_are_given_are_written_and_others_are_not(unroll: Unroll) -> None:
    given = {
        "min_gpu_budget": 2,
        "min_endpoint": 1,
        "context_length": 4096,
        "startup_time": 30.0,
        "aic_nextn": 2,
        "agg_block_size": 32,
    }
    sample = unroll(given)
    assert given.items() <= sample.items()
    assert set(unroll()).isdisjoint(set(given) - {"agg_block_size"})


def test_a_speculation_of_no_depth_is_none(unroll: Unroll) -> None:
    assert unroll({"aic_nextn": 0}) == unroll()


@pytest.mark.parametrize(
    ("backend", "is_moe", "written"),
    [("sglang", True, True), ("sglang", False, False), ("vllm", True, False)],
)
def test_a_kernel_for_experts_is_written_for_sglang_and_a_moe_model_alone(
    make_config: Callable[..., SmartSearchConfig],
    backend: Backend,
    is_moe: bool,  # noqa: FBT001  # a parameter of the test
    written: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    space = make_config({"backend": [backend], "moe_backend": "megamoe"}).search_space
    config = ParallelConfig((("agg", RoleDeployment(ParallelShape(2), 1)),))
    sample = static_sample(space, Selection("agg", backend, config, {}), is_moe=is_moe)
    assert ("moe_backend" in sample) is written


def test_offload_is_written_once_there_are_host_blocks(unroll: Unroll) -> None:
    assert OFFLOAD.items() <= unroll(OFFLOAD).items()
    names = {"kv_bytes_per_token", "offload_batch_size", "bandwidth_g1_to_g2_gbps"}
    assert names.isdisjoint(unroll())
    assert "bandwidth_g1_to_g2_gbps" not in unroll(OFFLOAD)


def test_router_weights_are_written_under_the_kv_router_alone(unroll: Unroll) -> None:
    weights = {"overlap_score_credit": 1.0, "prefill_load_scale": 1.0, "router_temperature": 0.0}
    cache = {"host_cache_hit_weight": 0.75, "disk_cache_hit_weight": 0.25}
    both = {"router_mode": ["kv_router", "round_robin"], **OFFLOAD}
    routed = unroll(both)
    assert {"router_mode": "kv_router", **weights, **cache}.items() <= routed.items()
    assert cache.keys().isdisjoint(unroll({"router_mode": ["kv_router"]}))
    plain = unroll(both, knobs={"router_mode": "round_robin"})
    assert plain["router_mode"] == "round_robin"
    assert {*weights, *cache}.isdisjoint(plain)


def test_a_static_policy_writes_no_planner_field(unroll: Unroll) -> None:
    static = {
        "enable_throughput_scaling": False,
        "enable_load_scaling": False,
        "throughput_adjustment_interval_seconds": 60,
        "load_adjustment_interval_seconds": 1,
    }
    policies: list[Any] = ["disabled", static]
    for policy in policies:
        sample = unroll({"planner_scaling_policy": [policy]})
        assert sample["planner_scaling_policy"] == policy
        assert SCALING_KEYS.isdisjoint(sample)


@pytest.mark.parametrize("target", ["sla", "throughput", "latency"])
def test_load_scaling_writes_its_fields_and_no_predictor(unroll: Unroll, target: str) -> None:
    sample = unroll(
        {
            "planner_scaling_policy": ["load_180_10"],
            "planner_fpm_sampling": ["large"],
            "planner_load_sensitivity": ["aggressive"],
        },
        planner_target=target,
    )
    expected = {
        "planner_scaling_policy": "load_180_10",
        "enable_throughput_scaling": False,
        "enable_load_scaling": True,
        "throughput_adjustment_interval_seconds": 180,
        "load_adjustment_interval_seconds": 10,
        "load_scaling_down_sensitivity": 70,
        "load_min_observations": 3,
        "planner_optimization_target": target,
    }
    assert expected.items() <= sample.items()
    assert not any(name.startswith(("load_predictor", "kalman", "prophet")) for name in sample)


@pytest.mark.parametrize(
    ("policy", "predictor"),
    [
        (
            "hybrid_180_5",
            {
                "load_predictor": "kalman",
                "load_predictor_log1p": False,
                "kalman_q_level": 1.0,
                "kalman_q_trend": 0.1,
                "kalman_r": 10.0,
                "kalman_min_points": 5,
            },
        ),
        (
            "throughput_600_5",
            {"load_predictor": "prophet", "load_predictor_log1p": True, "prophet_window_size": 20},
        ),
    ],
)
def test_throughput_scaling_writes_the_predictor_of_its_interval(
    unroll: Unroll, policy: str, predictor: dict[str, Any]
) -> None:
    sample = unroll(
        {
            "planner_scaling_policy": [policy],
            "planner_fpm_sampling": ["fine"],
            "planner_load_sensitivity": ["conservative"],
        }
    )
    expected = {
        "enable_throughput_scaling": True,
        "max_num_fpm_samples": 128,
        "fpm_sample_bucket_size": 64,
        "load_scaling_down_sensitivity": 90,
        "load_min_observations": 8,
    }
    assert expected.items() <= sample.items()
    written = {
        name: value
        for name, value in sample.items()
        if name.startswith(("load_predictor", "kalman", "prophet"))
    }
    assert written == predictor


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("constant_last", {"load_predictor": "constant", "load_predictor_log1p": False}),
        ("arima_log1p", {"load_predictor": "arima", "load_predictor_log1p": True}),
        (
            {"load_predictor": "prophet"},
            {"load_predictor": "prophet", "load_predictor_log1p": False, "prophet_window_size": 50},
        ),
        (
            {"load_predictor": "kalman", "kalman_r": 2.0, "load_predictor_log1p": True},
            {
                "load_predictor": "kalman",
                "load_predictor_log1p": True,
                "kalman_q_level": 1.0,
                "kalman_q_trend": 0.1,
                "kalman_r": 2.0,
                "kalman_min_points": 5,
            },
        ),
    ],
    ids=str,
)
def test_a_predictor_takes_its_own_familys_defaults(
    unroll: Unroll, entry: Any, expected: dict[str, Any]
) -> None:
    sample = unroll({"planner_scaling_policy": ["throughput_180_5"]}, predictors={180: entry})
    written = {
        name: value
        for name, value in sample.items()
        if name.startswith(("load_predictor", "kalman", "prophet"))
    }
    assert written == expected


def test_a_static_sample_tries_out_the_deployment_alone(
    make_config: Callable[..., SmartSearchConfig], unroll: Unroll
) -> None:
    space = {"router_mode": ["kv_router"], "planner_scaling_policy": ["load_180_5"]}
    selection = Selection("agg", "vllm", DENSE, {})
    found = static_sample(make_config(space).search_space, selection, is_moe=False)
    assert found == unroll()
