"""The flat sample: only what is active, the KV load that it stands for, and its key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from schemas.config import SmartSearchConfig
from schemas.messages import Sample
from schemas.search_space import Backend, DeploymentMode
from spica_async.sample import (
    ResolvedSample,
    SampleContext,
    resolve_kv_load,
    sample_key,
    static_sample,
    unroll_sample,
)
from spica_async.space.branch import BranchSpace, Selection
from spica_async.space.capacity import CapacityKey
from spica_async.space.pool import ParallelConfig, RoleDeployment
from spica_async.space.shapes import ParallelShape

Unroll = Callable[..., Sample]
DENSE = ParallelConfig((("agg", RoleDeployment(ParallelShape(2), 3)),))
PAIR = ParallelConfig(
    (
        ("prefill", RoleDeployment(ParallelShape(4, moe_ep=4), 2)),
        ("decode", RoleDeployment(ParallelShape(1, attention_dp=8, moe_ep=8), 1)),
    )
)
OFFLOAD = {"num_g2_blocks": 8, "kv_bytes_per_token": 1024, "offload_batch_size": 4}
SCALING_KEYS = {
    *("throughput_adjustment_interval_seconds", "load_adjustment_interval_seconds"),
    *("max_num_fpm_samples", "fpm_sample_bucket_size"),
    *("load_scaling_down_sensitivity", "load_min_observations", "planner_optimization_target"),
}


@pytest.fixture
def unroll(
    make_config: Callable[..., SmartSearchConfig],
    make_space: Callable[..., BranchSpace],
    make_context: Callable[..., SampleContext],
) -> Unroll:
    """Unroll what a configuration pins, with these knobs chosen."""

    def unroll_pinned(
        space: Mapping[str, Any] | None = None,
        *,
        knobs: Mapping[str, Any] | None = None,
        config: ParallelConfig = DENSE,
        backend: Backend = "vllm",
        **overrides: Any,
    ) -> Sample:
        mode: DeploymentMode = "agg" if config is DENSE else "disagg"
        searched = make_config({"deployment_mode": [mode], **(space or {})})
        branch = make_space(searched, sizes=(1,))
        chosen = {knob.name: knob.entries[0] for knob in branch.knobs} | dict(knobs or {})
        context = make_context(searched, branch, **overrides)
        return unroll_sample(context, Selection(mode, backend, config, chosen))

    return unroll_pinned


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
        "aic_nextn": 0,
        "moe_backend": "wideep",
        "agg_block_size": 32,
    }
    sample = unroll(given)
    assert given.items() <= sample.items()
    assert set(unroll()).isdisjoint(set(given) - {"agg_block_size"})


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


# --- the key ---


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
        (
            {"planner_scaling_policy": ["load_180_5"], "planner_fpm_sampling": ["small"]},
            {"planner_scaling_policy": ["load_180_5"], "planner_fpm_sampling": ["fine"]},
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


# --- the KV load ---


@pytest.fixture
def resolve(
    make_config: Callable[..., SmartSearchConfig],
    make_space: Callable[..., BranchSpace],
    make_context: Callable[..., SampleContext],
) -> Callable[..., ResolvedSample]:
    """Resolve a selection where each role has the given KV tokens a rank."""

    def resolve_with(
        ratio: float | None,
        tokens: Mapping[str, int | str],
        *,
        space: Mapping[str, Any] | None = None,
        isl: int = 1000,
        osl: int = 101,
        longest: int = 4096,
    ) -> ResolvedSample:
        pair = "prefill" in tokens
        mode: DeploymentMode = "disagg" if pair else "agg"
        config = make_config({"deployment_mode": [mode], **(space or {})})
        parallel = PAIR if pair else DENSE
        capacity = {
            CapacityKey("vllm", role, deployment.shape, 8192): tokens[role]
            for role, deployment in parallel.roles
        }
        branch = make_space(config, sizes=(1,))
        context = make_context(
            config,
            branch,
            capacity=capacity,
            isl=isl,
            osl=osl,
            longest_sequence=longest,
            facts={"needs_wide_ep": False},
        )
        selection = Selection(mode, "vllm", parallel, {}, ratio)
        return resolve_kv_load(context, selection, unroll_sample(context, selection))

    return resolve_with


def test_a_kv_load_is_a_share_of_what_the_decoding_role_holds(
    resolve: Callable[..., ResolvedSample],
) -> None:
    # 10,015 tokens are 156 blocks of 64: 9,984. Three replicas: 29,952.
    # A request holds 1000 + floor(101 / 2) = 1050: 28 of them fit. Half of that is 14.
    agg = resolve(0.5, {"agg": 10_015})
    assert agg.no_kv_room is None
    assert agg.facts == {
        "needs_wide_ep": False,
        "agg_kv_capacity_tokens": 29_952,
        "kv_load_ratio": 0.5,
        "concurrency": 14,
        "kv_load_concurrency_capacity": 28,
        "kv_load_capacity_tokens": 29_952,
    }
    assert (agg.sample["concurrency"], agg.sample["kv_load_ratio"]) == (14, 0.5)
    # Decode alone counts, with its eight attention ranks: 5,056 * 8 = 40,448 tokens, 38 requests.
    disagg = resolve(0.3, {"prefill": 5000, "decode": 5100})
    assert disagg.facts == {
        "needs_wide_ep": False,
        "prefill_kv_capacity_tokens": 4992 * 2,
        "decode_kv_capacity_tokens": 40_448,
        "kv_load_ratio": 0.3,
        "concurrency": 11,
        "kv_load_concurrency_capacity": 38,
        "kv_load_capacity_tokens": 40_448,
    }


@pytest.mark.parametrize(
    ("ratio", "concurrency"),
    [(0.0, 1), (0.01, 1), (0.071, 1), (0.072, 2), (0.999, 27), (1.0, 28), (2.0, 56)],
)
def test_a_concurrency_is_rounded_down_and_at_least_one(
    resolve: Callable[..., ResolvedSample], ratio: float, concurrency: int
) -> None:
    assert resolve(ratio, {"agg": 10_015}).sample["concurrency"] == concurrency


@pytest.mark.parametrize(("osl", "capacity"), [(1, 29), (2, 29), (3, 29), (66, 28), (200, 27)])
def test_half_the_output_is_held_on_average(
    resolve: Callable[..., ResolvedSample], osl: int, capacity: int
) -> None:
    # 29,952 // (1000 + osl // 2)
    assert resolve(1.0, {"agg": 10_015}, osl=osl).facts["kv_load_concurrency_capacity"] == capacity


def test_blocks_are_whole(resolve: Callable[..., ResolvedSample]) -> None:
    for block, tokens in {64: 9984, 100: 10_000, 10_015: 10_015, 6000: 6000}.items():
        resolved = resolve(1.0, {"agg": 10_015}, space={"agg_block_size": block})
        assert resolved.facts["agg_kv_capacity_tokens"] == tokens * 3


def test_another_workload_has_capacities_and_no_concurrency(
    resolve: Callable[..., ResolvedSample],
) -> None:
    resolved = resolve(None, {"agg": 10_015})
    assert resolved.facts == {"needs_wide_ep": False, "agg_kv_capacity_tokens": 29_952}
    assert "concurrency" not in resolved.sample
    assert "kv_load_ratio" not in resolved.sample


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ({"agg": 4096}, "agg: 4096 KV tokens a rank hold no sequence of 4096 tokens"),
        ({"agg": "no KV budget"}, "agg: no KV budget"),
        (
            {"prefill": 4096, "decode": 9999},
            "prefill: 4096 KV tokens a rank hold no sequence of 4096 tokens",
        ),
        (
            {"prefill": 9999, "decode": 10},
            "decode: 10 KV tokens a rank hold no sequence of 4096 tokens",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("ratio", [None, 0.5])
def test_a_role_without_room_makes_the_sample_infeasible(
    resolve: Callable[..., ResolvedSample],
    tokens: dict[str, int | str],
    reason: str,
    ratio: float | None,
) -> None:
    resolved = resolve(ratio, tokens)
    assert resolved.no_kv_room == reason
    # Nothing of the load is known, so the load makes no other sample of it.
    assert sample_key(resolved.sample) == sample_key(resolve(0.75, tokens).sample)


def test_one_token_more_than_the_longest_sequence_is_room(
    resolve: Callable[..., ResolvedSample],
) -> None:
    assert resolve(0.5, {"prefill": 4097, "decode": 4097}).no_kv_room is None


@pytest.mark.parametrize(("isl", "no_room"), [(29_952, False), (29_953, True)])
def test_a_cache_that_holds_not_one_request_is_infeasible(
    resolve: Callable[..., ResolvedSample],
    isl: int,
    no_room: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    resolved = resolve(1.0, {"agg": 10_015}, isl=isl, osl=1)
    assert resolved.no_kv_room == ("the KV cache holds not one request" if no_room else None)
    assert resolved.facts["kv_load_concurrency_capacity"] == (0 if no_room else 1)


def test_equal_concurrencies_are_one_sample_whatever_the_ratios(
    resolve: Callable[..., ResolvedSample],
) -> None:
    one, same, other = (resolve(ratio, {"agg": 10_015}).sample for ratio in (0.5, 0.51, 0.54))
    assert one["kv_load_ratio"] != same["kv_load_ratio"]
    assert sample_key(one) == sample_key(same) != sample_key(other)


def test_the_capacity_of_the_chosen_batch_limit_counts(
    make_config: Callable[..., SmartSearchConfig],
    make_space: Callable[..., BranchSpace],
    make_context: Callable[..., SampleContext],
) -> None:
    config = make_config({"agg_max_num_batched_tokens": [8192, 16384]})
    branch = make_space(config)
    context = make_context(config, branch)
    shape = branch.pool[0]["agg"].shape
    table = {**context.capacity, CapacityKey("vllm", "agg", shape, 16384): 8192}
    context = replace(context, capacity=table)
    for batched, has_room in {8192: True, 16384: False}.items():
        knobs = {"agg_max_num_batched_tokens": batched}
        selection = Selection("agg", "vllm", branch.pool[0], knobs)
        resolved = resolve_kv_load(context, selection, unroll_sample(context, selection))
        assert (resolved.no_kv_room is None) is has_room
