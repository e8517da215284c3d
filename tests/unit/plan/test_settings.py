"""What a plan makes of settings: those that do nothing, forecasts, and its description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.planning import FakeEngine, plan, refusal

from schemas.messages import TraceLoad
from schemas.presets import COMPOSITE_PRESETS
from schemas.search_space import SEARCH_CHOICES
from spica_async.engine.context import ContextExtension
from spica_async.engine.planner import WindowLoad
from spica_async.plan.describe import describe_parameter, describe_plan
from spica_async.plan.types import SweepPlan
from spica_async.space.parameters import CategoricalParameter, DiscreteParameter, FloatParameter


@pytest.mark.parametrize(
    ("space", "warning"),
    [
        ({"decode_max_num_seqs": [512]}, "deployment_mode has no disagg"),
        ({"prefill_block_size": 32}, "deployment_mode has no disagg"),
        ({"deployment_mode": ["disagg"], "agg_max_num_seqs": [256]}, "deployment_mode has no agg"),
        ({"router_temperature": [0.5]}, "router_mode has no kv_router"),
        ({"prefill_load_scale": [4.0]}, "router_mode has no kv_router"),
        ({"active_decode_blocks_threshold": 0.5}, "router_mode has no kv_router"),
        ({"router_mode": ["kv_router"], "host_cache_hit_weight": [0.5]}, "num_g2_blocks is 0"),
        (
            {"planner_load_sensitivity": ["aggressive"]},
            "no planner_scaling_policy that is searched scales",
        ),
        ({"min_endpoint": 2}, "no planner_scaling_policy that is searched scales"),
        ({"startup_time": 30.0}, "no planner_scaling_policy that is searched scales"),
        (
            {"planner_fpm_sampling": ["small"]},
            "no planner_scaling_policy that is searched scales",
        ),
        (
            {"load_predictor_candidates": ["arima_raw"]},
            "no planner_scaling_policy that is searched scales by throughput",
        ),
        ({"moe_backend": "megamoe"}, "the model has no experts"),
        ({"num_g2_blocks": 0, "kv_bytes_per_token": 1024}, "num_g2_blocks is 0"),
        ({"bandwidth_g1_to_g2_gbps": 10.0}, "num_g2_blocks is 0"),
        ({"bandwidth_g2_to_g1_gbps": 10.0}, "num_g2_blocks is 0"),
        ({"offload_batch_size": 4}, "num_g2_blocks is 0"),
    ],
    ids=str,
)
def test_a_setting_that_cannot_matter_is_warned_of(
    space: dict[str, Any],
    warning: str,
) -> None:
    name = list(space)[-1]
    assert f"{name} has no effect: {warning}" in plan(space).warnings


@pytest.mark.parametrize(
    "space",
    [
        {"router_mode": ["kv_router"], "prefill_load_scale": [4.0]},
        {"planner_scaling_policy": ["load_180_5"], "min_endpoint": 2},
        {"planner_scaling_policy": ["load_180_5"], "startup_time": 30.0},
        {"planner_scaling_policy": ["load_180_5"], "planner_fpm_sampling": ["small"]},
    ],
    ids=str,
)
def test_a_setting_that_matters_is_not_warned_of(space: dict[str, Any]) -> None:
    name = list(space)[-1]
    assert not any(warning.startswith(name) for warning in plan(space).warnings)


@pytest.mark.parametrize("knob", [*SEARCH_CHOICES, *COMPOSITE_PRESETS, "parallel_configs"])
def test_what_is_listed_twice_is_searched_once_with_a_warning(knob: str) -> None:
    entry: Any = {"tp": 1}
    if knob != "parallel_configs":
        choices = SEARCH_CHOICES.get(knob) or tuple(COMPOSITE_PRESETS[knob])
        entry = choices[-1] if knob == "deployment_mode" else choices[0]

    def planned(entries: list[Any]) -> SweepPlan:
        policies = (
            {} if knob == "planner_scaling_policy" else {"planner_scaling_policy": ["disabled"]}
        )
        return plan({"router_mode": ["kv_router"], **policies, knob: entries})

    once, twice = planned([entry]), planned([entry, entry])

    if knob != "parallel_configs":
        assert twice.config == once.config
    assert describe_plan(twice)["branches"] == describe_plan(once)["branches"]
    new = [warning for warning in twice.warnings if warning not in once.warnings]
    assert [warning.split()[:2] for warning in new] == [[knob, "lists"]]


def test_a_closed_loop_over_a_trace_has_no_use_for_arrival_times() -> None:
    workload = {"trace_path": "/a.jsonl", "replay_concurrency": 3, "arrival_speedup_ratio": 2.0}
    found = plan(workload=workload)
    assert found.warnings == (
        "arrival_speedup_ratio has no effect: replay_concurrency ignores arrival times",
    )


YARN = ContextExtension(16384, trained_for=4096)


def test_a_context_beyond_the_models_own_is_refused_where_no_server_starts_with_it() -> None:
    assert refusal({"context_length": 4097}).startswith(
        "search_space.context_length: 4097 is over the 4096 tokens that the configuration of "
    )
    found = refusal({"context_length": 16385}, FakeEngine(extension=YARN))
    assert "with rope scaling its documentation goes to 16384" in found
    assert plan({"context_length": 4096}).warnings == ()


@pytest.mark.parametrize(
    ("backend", "means"),
    [
        ("vllm", "(vllm: --hf-overrides)"),
        ("sglang", "sglang: --json-model-override-args and SGLANG_ALLOW_OVERWRITE"),
        ("trtllm", "(trtllm: the checkpoint's config.json)"),
    ],
)
def test_a_context_that_servers_can_be_set_up_for_is_warned_of(backend: str, means: str) -> None:
    engine = FakeEngine(extension=YARN)
    found = plan({"backend": [backend], "context_length": 9000}, engine).warnings[0]
    assert found.startswith("context_length 9000 is over the 4096 tokens")
    assert '"factor": 2.5, "original_max_position_embeddings": 4096' in found
    assert means in found


def test_a_model_without_positions_needs_its_limit_raised_alone() -> None:
    engine = FakeEngine(extension=ContextExtension(16384))
    (found,) = plan({"context_length": 9000}, engine).warnings
    assert "the server's limit raised (vllm: VLLM_ALLOW_LONG_MAX_MODEL_LEN=1)" in found


@pytest.mark.parametrize(
    ("backend", "key"),
    [
        ("vllm", "gpu_memory_utilization"),
        ("sglang", "mem_fraction_static"),
        ("trtllm", "free_gpu_memory_fraction"),
    ],
)
@pytest.mark.parametrize("role", ["agg", "prefill", "decode"])
def test_memory_that_no_server_has_is_warned_of(role: str, backend: str, key: str) -> None:
    mode = "agg" if role == "agg" else "disagg"
    name = f"{role}_gpu_memory_utilization"

    def warned(fraction: float) -> list[str]:
        found = plan({"deployment_mode": [mode], "backend": [backend], name: fraction})
        return [line for line in found.warnings if line.startswith(f"{name} ") and key in line]

    assert warned(0.94) == []
    assert len(warned(0.95)) == len(warned(1.0)) == 1


def test_a_default_that_is_not_the_backends_own_is_shown() -> None:
    (found,) = plan({"backend": ["sglang"]}).warnings
    assert found.startswith("agg_gpu_memory_utilization 0.9 is the default here, sglang's own is")
    assert plan({"backend": ["sglang"], "agg_gpu_memory_utilization": 0.88}).warnings == ()
    assert plan({"backend": ["vllm"]}).warnings == ()


def test_a_knob_that_the_engine_ignores_is_an_error_once_it_was_set() -> None:
    engine = FakeEngine(ignored={"vllm": {"agg_max_num_seqs": "is not replayed"}})
    assert refusal({"agg_max_num_seqs": [512]}, engine) == (
        "search_space.agg_max_num_seqs: is not replayed; remove it"
    )
    found = plan({"agg_max_num_seqs": [256, 512, 1024]}, engine)
    assert "agg_max_num_seqs is not searched: is not replayed" in found.warnings
    assert "agg_max_num_seqs" not in {knob.name for knob in found.branches[0].knobs}


def test_a_kernel_for_experts_needs_sglang_and_experts() -> None:
    def warned(backend: str) -> bool:
        space = {"backend": [backend], "moe_backend": "megamoe"}
        return any("moe_backend" in line for line in plan(space, FakeEngine(is_moe=True)).warnings)

    assert warned("vllm")
    assert not warned("sglang")


def test_a_knob_that_the_goals_planner_does_not_read_is_left_out_even_if_it_was_set() -> None:
    engine = FakeEngine(unread_without_sla={"planner_fpm_sampling": "reads it under sla alone"})
    space = {"planner_scaling_policy": ["load_180_5"], "planner_fpm_sampling": ["small"]}
    found = plan(space, engine)
    assert found.warnings == ("planner_fpm_sampling is not searched: reads it under sla alone",)
    assert "planner_fpm_sampling" not in {knob.name for knob in found.branches[0].knobs}
    goal = {"target": "goodput", "sla": {"ttft_ms": 1.0, "itl_ms": 1.0}}
    assert plan(space, engine, goal=goal).warnings == ()


def test_a_scalar_without_a_counterpart_in_the_engine_is_an_error() -> None:
    offload = {"num_g2_blocks": 10, "kv_bytes_per_token": 8, "offload_batch_size": 2}
    assert refusal(offload, FakeEngine()) == (
        "search_space.offload_batch_size: there are no batches; remove it"
    )


def test_a_knob_that_one_backend_ignores_stays() -> None:
    engine = FakeEngine(ignored={"sglang": {"agg_max_num_seqs": "is not replayed"}})
    found = plan({"backend": ["vllm", "sglang"], "agg_max_num_seqs": [256, 512]}, engine)
    assert "agg_max_num_seqs" in {knob.name for knob in found.branches[0].knobs}
    assert found.branches[0].ignored == {
        "vllm": frozenset(),
        "sglang": frozenset({"agg_max_num_seqs"}),
    }


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        ({"model_name": "unknown"}, "search_space.model_name: model 'unknown' is unknown"),
        (
            {"hardware_sku": "unknown"},
            "search_space.hardware_sku: hardware_sku 'unknown' is unknown; known: some_gpu",
        ),
    ],
)
def test_an_unknown_model_or_sku_is_refused(space: dict[str, str], expected: str) -> None:
    assert refusal(space) == expected


def test_the_planner_checks_what_is_written_out() -> None:
    engine = FakeEngine(planner_problem="fpm_sample_bucket_size: no perfect square")
    custom = {"max_num_fpm_samples": 8, "fpm_sample_bucket_size": 7}
    assert refusal({"planner_fpm_sampling": ["small", custom]}, engine) == (
        "search_space.planner_fpm_sampling[1]: fpm_sample_bucket_size: no perfect square"
    )


def test_policies_that_the_goal_rules_out_are_dropped_before_anything_else() -> None:
    found = plan({"planner_scaling_policy": ["hybrid_180_5", "load_180_5"]})
    assert found.config.search_space.planner_scaling_policy == ["load_180_5"]
    assert found.dropped[0].what == "planner_scaling_policy hybrid_180_5"
    assert found.dropped[0].reason.startswith("throughput scaling plans for an SLA")
    assert found.predictors.reason == "no_throughput_scaling_candidate"


def test_a_synthetic_workload_needs_no_forecast() -> None:
    goal = {"target": "goodput", "sla": {"ttft_ms": 1.0, "itl_ms": 1.0}}
    found = plan({"planner_scaling_policy": ["throughput_600_5", "hybrid_180_5"]}, goal=goal)
    assert found.predictors.best_by_interval == {600: "constant_last", 180: "constant_last"}
    assert found.predictors.reason == "static_workload_constant"


@pytest.fixture
def trace(tmp_path: Path) -> TraceLoad:
    path = tmp_path / "a.jsonl"
    line = {"timestamp": 0, "input_length": 100, "output_length": 20, "hash_ids": [1]}
    path.write_text(json.dumps(line), encoding="utf-8")
    return TraceLoad(path=str(path), sha256="0" * 64, size_bytes=1, requests=1, total_tokens=120)


def test_a_trace_is_forecast_for_each_interval_and_every_loss_is_described(
    trace: TraceLoad,
) -> None:
    predictors = ["arima_raw", {"load_predictor": "arima", "load_predictor_log1p": True}]
    found = plan(
        {
            "planner_scaling_policy": ["throughput_600_5", "hybrid_180_5"],
            "load_predictor_candidates": predictors,
        },
        FakeEngine(windows=[WindowLoad(10, 100, 20)] * 4),
        trace,
        workload={"trace_path": "a.jsonl"},
        goal={"target": "goodput", "sla": {"ttft_ms": 1.0, "itl_ms": 1.0}},
    )
    # The one that doubles is off by log(2) or so everywhere, the other by nothing.
    assert found.predictors.best_by_interval == dict.fromkeys((600, 180), predictors[1])
    described = describe_plan(found)["load_predictors"]
    assert isinstance(described, dict)
    losses = described["losses"]
    assert isinstance(losses, dict)
    assert set(losses) == {"600", "180"}
    assert json.loads(json.dumps(described)) == described


@pytest.mark.parametrize(("windows", "warnings"), [(1, 1), (4, 0)])
def test_a_predictor_that_stands_in_is_warned_of(
    trace: TraceLoad, windows: int, warnings: int
) -> None:
    found = plan(
        {"planner_scaling_policy": ["throughput_600_5"]},
        FakeEngine(windows=[WindowLoad(10, 100, 20)] * windows),
        trace,
        workload={"trace_path": "a.jsonl"},
        goal={"target": "goodput", "sla": {"ttft_ms": 1.0, "itl_ms": 1.0}},
    )
    warning = "no load predictor could be scored every 600 s: constant_last stands in"
    assert found.warnings == (warning,) * warnings


def test_a_kv_load_is_part_of_the_branch() -> None:
    lengths = {"isl": 10, "osl": 10, "num_request_ratio": 1}
    ranged = plan(workload=lengths, goal={"target": "pareto"})
    assert ranged.branches[0].kv_load == (0.0, 1.0)
    fixed = plan(workload={**lengths, "kv_load_ratio": 0.5})
    assert fixed.branches[0].kv_load == 0.5


def test_a_plan_is_described_in_plain_values() -> None:
    batched = {"agg_max_num_batched_tokens": [8192]}
    found = plan({"gpu_budget": 2, "agg_max_num_seqs": [256, 512], **batched})
    described = describe_plan(found)
    assert json.loads(json.dumps(described)) == described
    assert described["branches"] == [
        {
            "mode": "agg",
            "pool": 3,
            "pool_by_backend": {"vllm": 3},
            "distinct_samples": 6,
            "parameters": {
                "used_gpu_ratio": "0.5 to 1; starts at 1.0",
                "agg_num_gpus_per_engine_target": "1, 2 (log); starts at 1",
                "agg_max_num_seqs": "256, 512 (log)",
            },
            "seeds": [],
            "pinned": {
                "backend": "vllm",
                "agg_max_num_batched_tokens": 8192,
                "router_mode": "round_robin",
                "planner_scaling_policy": "disabled",
            },
        }
    ]
    assert described["longest_sequence"] == 4096
    assert described["dropped"] == []


@pytest.mark.parametrize(
    ("parameter", "text"),
    [
        (FloatParameter("x", 0.125, 1.0), "0.125 to 1"),
        (FloatParameter("x", 0.125, 1.0, default=0.5), "0.125 to 1; starts at 0.5"),
        (DiscreteParameter("x", (1, 2), log=True, default=1), "1, 2 (log); starts at 1"),
        (DiscreteParameter("x", (0.0, 0.25)), "0, 0.25"),
        (CategoricalParameter("x", ("ep", "tp"), default="ep"), "ep, tp; starts at ep"),
    ],
)
def test_a_parameter_is_described_by_its_values_and_start(parameter: Any, text: str) -> None:
    assert describe_parameter(parameter) == text


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"aic_nextn": 6}, "search_space.aic_nextn: 6; allowed: 5 at most"),
        ({"agg_block_size": 1}, "search_space.agg_block_size: 1; allowed: 2 or more"),
        (
            {"num_g2_blocks": 10**12, "kv_bytes_per_token": 10**12},
            "search_space.num_g2_blocks: 1000000000000 blocks of 64000000000000 bytes",
        ),
    ],
)
def test_a_number_that_the_engine_takes_for_no_shape_is_refused(
    space: dict[str, Any], said: str
) -> None:
    assert refusal(space).startswith(said)


def test_a_block_size_counts_for_the_backends_and_roles_that_are_searched() -> None:
    plan({"agg_block_size": 1, "backend": ["sglang"]})
    plan({"decode_block_size": 1, "prefill_block_size": 1})
    plan({"aic_nextn": 5})
