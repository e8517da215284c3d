from __future__ import annotations

from typing import Any

import pytest
from support.engine_samples import (
    KV_ROUTER,
    OFFLOAD,
    OFFLOAD_WEIGHTS,
    SLA,
    agg,
    disagg,
    minimax,
    scaled,
    shape,
)

from schemas.goal import SLATarget
from schemas.messages import Sample
from schemas.search_space import Role
from spica_async.engine.config import (
    engine_config,
    gpus_per_worker,
    planner_arguments,
    roles,
    router_arguments,
)


def sent(sample: Sample, sla: SLATarget | None = SLA) -> list[Any]:
    """All that reaches the engine, the router and the planner."""
    return [
        *(engine_config(sample, role) for role in roles(sample)),
        *(sample[f"{'' if role == 'agg' else f'{role}_'}replicas"] for role in roles(sample)),
        sample["router_mode"],
        router_arguments(sample),
        planner_arguments(sample, sla),
    ]


ROLE_KNOBS = [
    ("max_num_batched_tokens", 16384),
    ("max_num_seqs", 512),
    ("gpu_memory_utilization", 0.8),
    ("block_size", 32),
]
SHARED = [
    ("startup_time", 30.0),
    ("aic_nextn", 2),
    ("context_length", 4096),
    ("model_name", "Qwen/Qwen3-8B"),
    ("hardware_sku", "b200_sxm"),
]
ROUTER = [
    ("overlap_score_credit", 0.5),
    ("prefill_load_scale", 8.0),
    ("router_temperature", 0.2),
]
OFFLOADING = [
    ("host_cache_hit_weight", 1.0),
    ("disk_cache_hit_weight", 0.0),
    ("num_g2_blocks", 10),
    ("kv_bytes_per_token", 1024),
    ("bandwidth_g1_to_g2_gbps", 1.0),
    ("bandwidth_g2_to_g1_gbps", 1.0),
]
PLANNER = [
    ("enable_load_scaling", False),
    ("enable_throughput_scaling", False),
    ("throughput_adjustment_interval_seconds", 600),
    ("load_adjustment_interval_seconds", 10),
    ("max_num_fpm_samples", 128),
    ("fpm_sample_bucket_size", 64),
    ("load_scaling_down_sensitivity", 70),
    ("load_min_observations", 3),
    ("load_predictor", "arima"),
    ("load_predictor_log1p", True),
    ("prophet_window_size", 20),
    ("kalman_q_level", 10.0),
    ("kalman_q_trend", 1.0),
    ("kalman_r", 5.0),
    ("kalman_min_points", 3),
    ("gpu_budget", 16),
    ("min_gpu_budget", 8),
    ("min_endpoint", 2),
]


@pytest.mark.parametrize(("knob", "value"), ROLE_KNOBS)
@pytest.mark.parametrize("role", ["agg", "prefill", "decode"])
@pytest.mark.parametrize("backend", ["vllm", "sglang", "trtllm"])
def test_each_engine_knob_reaches_its_role(
    backend: str, role: Role, knob: str, value: float
) -> None:
    build = agg if role == "agg" else disagg
    before, after = build(backend=backend), build(backend=backend, **{f"{role}_{knob}": value})
    for other in roles(before):
        changed = engine_config(before, other) != engine_config(after, other)
        assert changed == (other == role)


@pytest.mark.parametrize(("knob", "value"), [*SHARED, ("backend", "sglang")])
@pytest.mark.parametrize("build", [agg, disagg])
def test_each_deployment_scalar_reaches_every_role(build: Any, knob: str, value: Any) -> None:
    before, after = build(), build(**{knob: value})
    for role in roles(before):
        assert engine_config(before, role) != engine_config(after, role)


@pytest.mark.parametrize(("knob", "value"), ROUTER)
def test_each_router_weight_reaches_the_kv_router_alone(knob: str, value: float) -> None:
    assert sent(agg(**KV_ROUTER)) != sent(agg(**KV_ROUTER) | {knob: value})
    assert sent(agg()) == sent(agg(**{knob: value}))


@pytest.mark.parametrize(("knob", "value"), OFFLOADING)
def test_each_offload_setting_reaches_engine_or_router(knob: str, value: float) -> None:
    sample = agg(**KV_ROUTER, **OFFLOAD, **OFFLOAD_WEIGHTS)
    assert sent(sample) != sent(sample | {knob: value})


def test_without_offload_its_weights_are_not_sent() -> None:
    assert sent(agg(**KV_ROUTER)) == sent(agg(**KV_ROUTER, **OFFLOAD_WEIGHTS))


@pytest.mark.parametrize(("knob", "value"), PLANNER)
def test_each_planner_field_reaches_a_planner_that_runs(knob: str, value: Any) -> None:
    sample = agg(**scaled("hybrid_180_5"))
    assert sent(sample) != sent(sample | {knob: value})


@pytest.mark.parametrize(
    ("knob", "value"), [row for row in PLANNER if not row[0].startswith("enable")]
)
def test_without_scaling_no_planner_field_is_sent(knob: str, value: Any) -> None:
    assert sent(agg()) == sent(agg(**{knob: value}))


def test_the_planner_scales_to_the_target_of_the_sample() -> None:
    targets = {
        target: planner_arguments(agg(**scaled("load_180_5", target)), SLA)
        for target in ("sla", "throughput", "latency")
    }
    assert {key: value and value["optimization_target"] for key, value in targets.items()} == {
        key: key for key in targets
    }
    assert targets["sla"] is not None
    assert (targets["sla"]["ttft_ms"], targets["sla"]["itl_ms"]) == (2000, 50)
    assert targets["latency"] is not None
    assert "ttft_ms" not in targets["latency"]


@pytest.mark.parametrize("sla", [None, SLATarget(e2e_ms=1000), SLATarget(ttft_ms=1000)])
def test_the_sla_target_needs_both_token_levels(sla: SLATarget | None) -> None:
    with pytest.raises(ValueError, match="ttft_ms and itl_ms"):
        planner_arguments(agg(**scaled("load_180_5")), sla)


def test_the_planner_knows_the_gpus_of_each_engine() -> None:
    fields = planner_arguments(disagg(**scaled("load_180_5")), SLA)
    assert fields is not None
    assert (fields["prefill_engine_num_gpu"], fields["decode_engine_num_gpu"]) == (2, 4)
    fields = planner_arguments(minimax(**shape(attention_dp=8), **scaled("load_180_5")), SLA)
    assert fields is not None
    assert fields["decode_engine_num_gpu"] == 8
    assert "prefill_engine_num_gpu" not in fields


def test_a_planner_opens_no_port_and_writes_no_report() -> None:
    fields = planner_arguments(agg(**scaled("load_180_5")), SLA)
    assert fields is not None
    assert fields["report_interval_hours"] is None
    assert fields["live_dashboard_port"] == fields["control_api_port"] == 0


@pytest.mark.parametrize(
    ("backend", "key"),
    [
        ("vllm", "gpu_memory_utilization"),
        ("sglang", "mem_fraction_static"),
        ("trtllm", "free_gpu_memory_fraction"),
    ],
)
def test_the_memory_fraction_goes_by_the_backend_s_own_name(backend: str, key: str) -> None:
    config = engine_config(agg(backend=backend, agg_gpu_memory_utilization=0.7), "agg")
    assert {name: value for name, value in config.items() if value == 0.7} == {key: 0.7}


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize("role", ["agg", "prefill", "decode"])
def test_prefix_caching_is_a_choice_of_agg_and_prefill_and_never_of_decode(
    role: Role,
    asked: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    build = agg if role == "agg" else disagg
    sample = build(**{f"{role}_enable_prefix_caching": asked})
    caching = engine_config(sample, role)["engine"]["enable_prefix_caching"]
    assert caching == (asked and role != "decode")


def test_offload_is_for_workers_that_prefill() -> None:
    sample = disagg(**OFFLOAD)
    assert engine_config(sample, "prefill")["engine"]["native_host_offload"] == {
        "num_host_blocks": 20_000,
        "d2h_bandwidth_gbps": 50.0,
        "h2d_bandwidth_gbps": 50.0,
    }
    assert "native_host_offload" in engine_config(agg(**OFFLOAD), "agg")["engine"]
    assert "native_host_offload" not in engine_config(sample, "decode")["engine"]
    assert "native_host_offload" not in engine_config(agg(), "agg")["engine"]


def test_offload_without_bandwidths_leaves_them_to_the_engine() -> None:
    sample = agg(num_g2_blocks=5, kv_bytes_per_token=10)
    assert engine_config(sample, "agg")["engine"]["native_host_offload"] == {"num_host_blocks": 5}


def test_moe_sizes_go_in_for_moe_models_even_on_one_gpu() -> None:
    def timing(sample: Sample) -> dict[str, Any]:
        config: dict[str, Any] = engine_config(sample, "agg")["engine"]["timing_model"]["config"]
        return config

    dense = timing(agg())
    assert not {"moe_tp_size", "moe_ep_size"} & set(dense)
    one = timing(minimax(**shape()))
    assert (one["moe_tp_size"], one["moe_ep_size"]) == (1, 1)
    four = timing(minimax(moe_backend="deepep_moe"))
    assert (four["moe_tp_size"], four["moe_ep_size"]) == (1, 4)
    assert four["moe_backend"] == "deepep_moe"


def test_attention_dp_is_the_engine_s_number_of_ranks() -> None:
    sample = minimax(**shape(attention_dp=4, moe_ep=4))
    config = engine_config(sample, "agg")
    assert config["dp_size"] == 4
    assert config["engine"]["timing_model"]["config"]["attention_dp"] == 4
    assert gpus_per_worker(sample, "agg") == 4


def test_speculation_goes_to_the_scheduler_and_to_the_timing() -> None:
    engine = engine_config(agg(aic_nextn=3), "agg")["engine"]
    assert engine["aic_nextn"] == engine["timing_model"]["config"]["nextn"] == 3


def test_a_missing_field_is_named() -> None:
    sample = agg()
    del sample["agg_block_size"]
    with pytest.raises(KeyError, match="agg_block_size"):
        engine_config(sample, "agg")
