"""The plan of a sweep, with an engine whose answers are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import JsonValue

from schemas.config import SmartSearchConfig
from schemas.messages import Sample, TraceLoad
from schemas.search_space import Backend, DeploymentMode, Role
from spica_async.engine.capacity import ShapeRejectedError
from spica_async.engine.facts import (
    HardwareFacts,
    ModelFacts,
    NoPerfDatabaseError,
    UnknownModelError,
    UnknownSkuError,
)
from spica_async.errors import InputError
from spica_async.forecast import Predictor, Window
from spica_async.plan.build import plan_sweep
from spica_async.plan.describe import describe_parameter, describe_plan
from spica_async.plan.types import Dropped, SweepPlan
from spica_async.space.capacity import CapacityKey
from spica_async.space.parameters import CategoricalParameter, DiscreteParameter, FloatParameter
from spica_async.space.pool import ParallelConfig, RoleDeployment
from spica_async.space.shapes import ParallelShape

ROOMY = 200_000
SMALL = {
    "model_name": "a/model",
    "hardware_sku": "some_gpu",
    "deployment_mode": ["agg"],
    "gpu_budget": 4,
    "router_mode": ["round_robin"],
    "planner_scaling_policy": ["disabled"],
}
CLOSED_LOOP = {"concurrency": 4, "isl": 1000, "osl": 100, "num_request_ratio": 2.0}


@dataclass
class FakeEngine:
    """Answers as it is told to, and remembers what it was asked."""

    is_moe: bool = False
    tokens: Callable[[Sample, Role], int] = lambda *_: ROOMY
    unsupported: Mapping[tuple[Backend, DeploymentMode], str] = field(default_factory=dict)
    unmeasured: frozenset[str] = frozenset()
    ignored: Mapping[tuple[Backend, DeploymentMode], Mapping[str, str]] = field(
        default_factory=dict
    )
    planner_problem: str | None = None
    windows: Sequence[Window] = ()
    asked_for_capacity: list[tuple[str, Role, ParallelShape, int]] = field(default_factory=list)
    probed: list[Sample] = field(default_factory=list)

    def model_facts(self, model: str) -> ModelFacts:
        if model == "unknown":
            raise UnknownModelError("model 'unknown' is unknown")
        return ModelFacts(model, "AnyForCausalLM", self.is_moe, 4096, 10**9)

    def hardware_facts(self, sku: str) -> HardwareFacts:
        if sku == "unknown":
            raise UnknownSkuError("hardware_sku 'unknown' is unknown; known: some_gpu")
        return HardwareFacts(sku, 8, 10**11)

    def backend_version(self, sku: str, backend: Backend) -> str:
        if backend in self.unmeasured:
            raise NoPerfDatabaseError(f"no performance data for {backend} on {sku}")
        return f"{backend} 1.0"

    def needs_wide_ep(self, model: ModelFacts, hardware: HardwareFacts) -> bool:
        return model.is_moe and hardware.gpus_per_node == 8

    def kv_tokens_per_rank(self, sample: Sample, role: Role) -> int:
        prefix = "" if role == "agg" else f"{role}_"
        sizes = [
            cast("int", sample[f"{prefix}{n}"]) for n in ("tp", "attention_dp", "moe_tp", "moe_ep")
        ]
        batched = cast("int", sample[f"{role}_max_num_batched_tokens"])
        self.asked_for_capacity.append(
            (str(sample["backend"]), role, ParallelShape(*sizes), batched)
        )
        return self.tokens(sample, role)

    def probe_replay(self, sample: Sample) -> str | None:
        self.probed.append(sample)
        key = cast("Any", (sample["backend"], sample["deployment_mode"]))
        return self.unsupported.get(key)

    def ignored_knobs(self, backend: Backend, mode: DeploymentMode) -> Mapping[str, str]:
        return self.ignored.get((backend, mode), {})

    def check_planner_fields(self, fields: Mapping[str, JsonValue]) -> str | None:
        return self.planner_problem

    def trace_windows(self, path: Path, interval_seconds: int) -> Sequence[Window]:
        return self.windows

    def make_predictor(self, fields: Mapping[str, JsonValue], interval_seconds: int) -> Predictor:
        return LastValue(1.0 if fields["load_predictor_log1p"] else 2.0)


@dataclass(frozen=True)
class SteadyWindow:
    """A window of a load that never changes."""

    requests: float = 10.0
    mean_isl: float = 100.0
    mean_osl: float = 20.0


@dataclass
class LastValue:
    """Forecasts a multiple of the last value."""

    factor: float
    minimum_data_points: int = 1
    last: float = 0.0

    def add_data_point(self, value: float) -> None:
        self.last = value

    def predict_next(self) -> float:
        return self.factor * self.last


def reject_tp_over(size: int) -> Callable[[Sample, Role], int]:
    def tokens(sample: Sample, role: Role) -> int:
        tp = cast("int", sample["tp" if role == "agg" else f"{role}_tp"])
        if tp > size:
            raise ShapeRejectedError("indivisible", f"heads are not divisible by {tp}")
        return ROOMY

    return tokens


@pytest.fixture
def plan() -> Callable[..., SweepPlan]:
    """Plan a small aggregate sweep with these blocks; nothing is set that has no effect."""

    def make(
        space: Mapping[str, Any] | None = None,
        engine: FakeEngine | None = None,
        trace: TraceLoad | None = None,
        **blocks: Any,
    ) -> SweepPlan:
        document = {"search_space": {**SMALL, **(space or {})}, "workload": CLOSED_LOOP, **blocks}
        config = SmartSearchConfig.model_validate(document)
        return plan_sweep(config, engine or FakeEngine(), trace, lambda _: None)

    return make


def refusal(plan: Callable[..., SweepPlan], *arguments: Any, **blocks: Any) -> str:
    with pytest.raises(InputError) as found:
        plan(*arguments, **blocks)
    return str(found.value)


def configs(found: SweepPlan, branch: int = 0) -> list[str]:
    pool = found.branches[branch].pool
    return [str(pool[index]) for index in range(len(pool))]


def test_a_branch_per_mode_in_the_order_of_the_configuration(
    plan: Callable[..., SweepPlan],
) -> None:
    found = plan({"deployment_mode": ["disagg", "agg"], "gpu_budget": 2})
    assert [branch.mode for branch in found.branches] == ["disagg", "agg"]
    assert configs(found, 0) == ["prefill 1 x (tp 1), decode 1 x (tp 1)"]
    assert configs(found, 1) == ["agg 1 x (tp 1)", "agg 2 x (tp 1)", "agg 1 x (tp 2)"]
    assert found.dropped == ()
    assert found.warnings == ()
    assert found.backend_versions == {"vllm": "vllm 1.0"}
    assert found.branches[0].gpu_budget == 2


def test_every_batch_limit_of_every_shape_is_asked_for(plan: Callable[..., SweepPlan]) -> None:
    engine = FakeEngine()
    found = plan({"gpu_budget": 2, "agg_max_num_batched_tokens": [8192, 16384]}, engine)
    expected = [
        ("vllm", "agg", ParallelShape(size), batched)
        for size in (1, 2)
        for batched in (8192, 16384)
    ]
    assert engine.asked_for_capacity == expected
    assert found.capacity == {
        CapacityKey("vllm", "agg", shape, batched): ROOMY for _, _, shape, batched in expected
    }


@pytest.mark.parametrize(
    ("context_length", "kept"), [(None, ["agg 1 x (tp 2)"]), (3999, 3), (4000, 1)]
)
def test_the_longest_sequence_is_the_models_unless_it_is_given(
    plan: Callable[..., SweepPlan], context_length: int | None, kept: int | list[str]
) -> None:
    engine = FakeEngine(tokens=lambda sample, _: 2000 * 2 * cast("int", sample["tp"]))
    space = {"gpu_budget": 2} | ({"context_length": context_length} if context_length else {})
    found = plan(space, engine)
    assert found.longest_sequence == (context_length or 4096)
    assert len(configs(found)) == (kept if isinstance(kept, int) else len(kept))
    if context_length is None:
        assert found.dropped == (
            Dropped("agg vllm agg tp 1", "4000 KV tokens a rank hold no sequence of 4096 tokens"),
        )


def test_a_shape_stays_while_one_batch_limit_leaves_room(plan: Callable[..., SweepPlan]) -> None:
    engine = FakeEngine(tokens=lambda s, _: ROOMY if s["agg_max_num_batched_tokens"] == 8192 else 1)
    space = {"gpu_budget": 1, "agg_max_num_batched_tokens": [16384, 8192]}
    found = plan(space, engine)
    assert configs(found) == ["agg 1 x (tp 1)"]
    assert sorted(map(str, found.capacity.values())) == ["1", str(ROOMY)]


def test_a_shape_that_the_engine_rejects_is_dropped_with_its_reason(
    plan: Callable[..., SweepPlan],
) -> None:
    found = plan({"gpu_budget": 2}, FakeEngine(tokens=reject_tp_over(1)))
    assert configs(found) == ["agg 1 x (tp 1)", "agg 2 x (tp 1)"]
    assert found.dropped == (Dropped("agg vllm agg tp 2", "heads are not divisible by 2"),)
    key = CapacityKey("vllm", "agg", ParallelShape(2), 8192)
    assert found.capacity[key] == "heads are not divisible by 2"


def test_shapes_that_a_backend_refuses_are_not_asked_for(plan: Callable[..., SweepPlan]) -> None:
    engine = FakeEngine(is_moe=True)
    found = plan({"gpu_budget": 2, "backend": ["sglang"], "moe_backend": "deepep_moe"}, engine)
    assert {shape for _, _, shape, _ in engine.asked_for_capacity} == {
        ParallelShape(1),
        ParallelShape(2, moe_ep=2),
        ParallelShape(1, attention_dp=2, moe_ep=2),
    }
    assert {dropped.reason for dropped in found.dropped} == {
        "moe_backend deepep_moe on sglang takes moe_tp 1 only"
    }
    assert found.needs_wide_ep is True


def test_a_backend_without_data_or_replay_leaves_the_knob_with_its_reason(
    plan: Callable[..., SweepPlan],
) -> None:
    engine = FakeEngine(
        unmeasured=frozenset({"sglang"}), unsupported={("trtllm", "disagg"): "no such thing"}
    )
    found = plan(
        {
            "deployment_mode": ["disagg", "agg"],
            "backend": ["trtllm", "sglang", "vllm"],
            "gpu_budget": 2,
        },
        engine,
    )
    assert [branch.backend.entries for branch in found.branches] == [("vllm",), ("trtllm", "vllm")]
    assert found.dropped == (
        Dropped("backend sglang", "no performance data for sglang on some_gpu"),
        Dropped("disagg trtllm", "cannot be replayed: no such thing"),
    )
    assert found.backend_versions == {"trtllm": "trtllm 1.0", "vllm": "vllm 1.0"}


def test_a_mode_that_nothing_can_run_is_skipped_and_the_other_stays(
    plan: Callable[..., SweepPlan],
) -> None:
    engine = FakeEngine(unsupported={("vllm", "disagg"): "no such thing"})
    found = plan({"deployment_mode": ["disagg", "agg"], "gpu_budget": 2}, engine)
    assert [branch.mode for branch in found.branches] == ["agg"]
    assert found.dropped == (
        Dropped("disagg vllm", "cannot be replayed: no such thing"),
        Dropped("disagg", "no backend can run it"),
    )


def test_a_few_shapes_are_tried_and_one_that_runs_speaks_for_the_backend(
    plan: Callable[..., SweepPlan],
) -> None:
    engine = FakeEngine()
    plan({"gpu_budget": 16}, engine)
    assert [sample["tp"] for sample in engine.probed] == [1]
    assert engine.probed[0]["replicas"] == 1
    failing = FakeEngine(unsupported={("vllm", "agg"): "no such thing"})
    assert "no such thing" in refusal(plan, {"gpu_budget": 16}, failing)
    assert [sample["tp"] for sample in failing.probed] == [1, 2, 4]


def test_a_budget_that_nothing_fits_tells_why_each_shape_went(
    plan: Callable[..., SweepPlan],
) -> None:
    engine = FakeEngine(tokens=lambda sample, _: cast("int", sample["tp"]))
    assert refusal(plan, {"gpu_budget": 2}, engine) == (
        "search_space.gpu_budget: nothing of a/model on some_gpu fits 2 GPUs:\n"
        "  agg vllm agg tp 1: 1 KV tokens a rank hold no sequence of 4096 tokens\n"
        "  agg vllm agg tp 2: 2 KV tokens a rank hold no sequence of 4096 tokens\n"
        "  agg: no backend can run it"
    )


def test_limits_that_no_replicas_meet_are_told(plan: Callable[..., SweepPlan]) -> None:
    engine = FakeEngine(tokens=lambda s, _: ROOMY if s["tp"] == 4 else 0)
    found = refusal(plan, {"gpu_budget": 7, "min_gpu_budget": 5}, engine)
    assert found.endswith(
        "\n  agg vllm: no replicas of its shapes use 5 to 7 GPUs\n  agg: no backend can run it"
    )


def test_a_backend_without_replicas_within_the_limits_is_dropped_with_its_reason(
    plan: Callable[..., SweepPlan],
) -> None:
    engine = FakeEngine(tokens=lambda s, _: ROOMY if s["backend"] == "vllm" or s["tp"] == 4 else 0)
    space = {"backend": ["vllm", "sglang"], "gpu_budget": 7, "min_gpu_budget": 5}
    found = plan(space, engine)
    assert found.branches[0].backend.entries == ("vllm",)
    assert Dropped("agg sglang", "no replicas of its shapes use 5 to 7 GPUs") in found.dropped


# --- pinned configurations ---


def test_pinned_configurations_are_the_whole_pool(plan: Callable[..., SweepPlan]) -> None:
    found = plan(
        {
            "deployment_mode": ["disagg"],
            "parallel_configs": [
                {"prefill": {"tp": 2}, "decode": {"tp": 1, "replicas": 2}},
                {"prefill": {"tp": 1}, "decode": {"tp": 1}},
            ],
        }
    )
    assert configs(found) == [
        "prefill 1 x (tp 1), decode 1 x (tp 1)",
        "prefill 1 x (tp 2), decode 2 x (tp 1)",
    ]


def test_a_pin_is_kept_for_the_backends_that_can_run_it(plan: Callable[..., SweepPlan]) -> None:
    engine = FakeEngine(is_moe=True)
    mixed = {"tp": 2, "attention_dp": 2, "moe_ep": 4}
    found = plan(
        {"backend": ["trtllm", "vllm"], "parallel_configs": [mixed, {"tp": 2, "moe_ep": 2}]},
        engine,
    )
    pool = found.branches[0].pool
    legal = {
        backend: [str(pool[int(i)]) for i in pool.legal_indices(backend)]
        for backend in pool.backends
    }
    assert legal == {
        "trtllm": ["agg 1 x (tp 2 moe_ep 2)"],
        "vllm": ["agg 1 x (tp 2 moe_ep 2)", "agg 1 x (tp 2 attention_dp 2 moe_ep 4)"],
    }
    probed = [(s["backend"], s["tp"], s["attention_dp"]) for s in engine.probed]
    assert probed == [("trtllm", 2, 1), ("vllm", 2, 2)]


@pytest.mark.parametrize(
    ("entry", "engine", "expected"),
    [
        (
            {"tp": 2, "replicas": 3},
            FakeEngine(),
            "search_space.parallel_configs[0]: uses 6 GPUs, allowed are 2 to 4",
        ),
        (
            {"tp": 1},
            FakeEngine(),
            "search_space.parallel_configs[0]: uses 1 GPUs, allowed are 2 to 4",
        ),
        (
            {"tp": 2, "moe_ep": 2},
            FakeEngine(),
            (
                "search_space.parallel_configs[0]: no backend can run agg 1 x (tp 2 moe_ep 2):\n"
                "  agg vllm agg tp 2 moe_ep 2: a dense model takes tp alone: "
                "attention_dp, moe_tp and moe_ep stay 1"
            ),
        ),
        (
            {"tp": 2},
            FakeEngine(is_moe=True),
            (
                "search_space.parallel_configs[0]: no backend can run agg 1 x (tp 2):\n"
                "  agg vllm agg tp 2: tp * attention_dp is 2 but moe_tp * moe_ep is 1"
            ),
        ),
        (
            {"tp": 4},
            FakeEngine(tokens=reject_tp_over(2)),
            (
                "search_space.parallel_configs[0]: no backend can run agg 1 x (tp 4):\n"
                "  agg vllm agg tp 4: heads are not divisible by 4"
            ),
        ),
        (
            {"tp": 4},
            FakeEngine(unsupported={("vllm", "agg"): "no such thing"}),
            (
                "search_space.parallel_configs[0]: no backend can run agg 1 x (tp 4):\n"
                "  agg vllm: cannot be replayed: no such thing"
            ),
        ),
    ],
    ids=["over", "under", "dense", "width", "rejected", "unsupported"],
)
def test_a_pin_that_nothing_can_run_is_an_error(
    plan: Callable[..., SweepPlan], entry: dict[str, int], engine: FakeEngine, expected: str
) -> None:
    space = {"min_gpu_budget": 2, "parallel_configs": [entry]}
    assert refusal(plan, space, engine) == expected


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_pin_at_a_limit_is_legal(plan: Callable[..., SweepPlan], replicas: int) -> None:
    space = {"min_gpu_budget": 2, "parallel_configs": [{"tp": 2, "replicas": replicas}]}
    pool = plan(space).branches[0].pool
    assert pool[0] == ParallelConfig((("agg", RoleDeployment(ParallelShape(2), replicas)),))


# --- settings that do nothing ---


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
        (
            {"planner_scaling_policy": ["load_180_5"], "planner_fpm_sampling": ["small"]},
            "no planner_scaling_policy that is searched scales by throughput",
        ),
        (
            {"load_predictor_candidates": ["arima_raw"]},
            "no planner_scaling_policy that is searched scales by throughput",
        ),
        ({"moe_backend": "wideep"}, "backend has no sglang"),
    ],
    ids=str,
)
def test_a_setting_that_cannot_matter_is_warned_of(
    plan: Callable[..., SweepPlan],
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
        {"backend": ["sglang"], "moe_backend": "wideep"},
    ],
    ids=str,
)
def test_a_setting_that_matters_is_not_warned_of(
    plan: Callable[..., SweepPlan], space: dict[str, Any]
) -> None:
    name = list(space)[-1]
    assert not any(warning.startswith(name) for warning in plan(space).warnings)


def test_a_knob_that_the_engine_ignores_is_an_error_once_it_was_set(
    plan: Callable[..., SweepPlan],
) -> None:
    engine = FakeEngine(
        ignored={
            ("vllm", "agg"): {"agg_max_num_seqs": "is not replayed", "aic_nextn": "is not used"}
        }
    )
    assert refusal(plan, {"agg_max_num_seqs": [512]}, engine) == (
        "search_space.agg_max_num_seqs: is not replayed; remove it"
    )
    every = {"agg_max_num_seqs": [256, 512, 1024]}
    assert refusal(plan, {**every, "aic_nextn": 1}, engine) == (
        "search_space.aic_nextn: is not used; remove it"
    )
    found = plan(every, engine)
    assert "agg: agg_max_num_seqs is not searched: is not replayed" in found.warnings
    assert "agg_max_num_seqs" not in {knob.name for knob in found.branches[0].knobs}


def test_a_knob_that_one_backend_ignores_stays(plan: Callable[..., SweepPlan]) -> None:
    engine = FakeEngine(ignored={("sglang", "agg"): {"agg_max_num_seqs": "is not replayed"}})
    found = plan({"backend": ["vllm", "sglang"], "agg_max_num_seqs": [256, 512]}, engine)
    assert "agg_max_num_seqs" in {knob.name for knob in found.branches[0].knobs}
    assert found.branches[0].ignored == {
        "vllm": frozenset(),
        "sglang": frozenset({"agg_max_num_seqs"}),
    }


# --- the rest of a plan ---


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
def test_an_unknown_model_or_sku_is_refused(
    plan: Callable[..., SweepPlan], space: dict[str, str], expected: str
) -> None:
    assert refusal(plan, space) == expected


def test_the_planner_checks_what_is_written_out(plan: Callable[..., SweepPlan]) -> None:
    engine = FakeEngine(planner_problem="fpm_sample_bucket_size: no perfect square")
    custom = {"max_num_fpm_samples": 8, "fpm_sample_bucket_size": 7}
    assert refusal(plan, {"planner_fpm_sampling": ["small", custom]}, engine) == (
        "search_space.planner_fpm_sampling[1]: fpm_sample_bucket_size: no perfect square"
    )


def test_policies_that_the_goal_rules_out_are_dropped_before_anything_else(
    plan: Callable[..., SweepPlan],
) -> None:
    found = plan({"planner_scaling_policy": ["hybrid_180_5", "load_180_5"]})
    assert found.config.search_space.planner_scaling_policy == ["load_180_5"]
    assert found.dropped[0].what == "planner_scaling_policy hybrid_180_5"
    assert found.dropped[0].reason.startswith("throughput scaling plans for an SLA")
    assert found.predictors.reason == "no_throughput_scaling_candidate"


def test_a_synthetic_workload_needs_no_forecast(plan: Callable[..., SweepPlan]) -> None:
    goal = {"target": "goodput", "sla": {"ttft_ms": 1.0, "itl_ms": 1.0}}
    found = plan({"planner_scaling_policy": ["throughput_600_5", "hybrid_180_5"]}, goal=goal)
    assert found.predictors.best_by_interval == {600: "constant_last", 180: "constant_last"}
    assert found.predictors.reason == "static_workload_constant"


def test_a_trace_is_forecast_for_each_interval_and_every_loss_is_described(
    plan: Callable[..., SweepPlan], tmp_path: Path
) -> None:
    path = tmp_path / "a.jsonl"
    line = {"timestamp": 0, "input_length": 100, "output_length": 20, "hash_ids": [1]}
    path.write_text(json.dumps(line), encoding="utf-8")
    trace = TraceLoad(path=str(path), sha256="0" * 64, size_bytes=1, requests=1, total_tokens=120)
    predictors = ["arima_raw", {"load_predictor": "arima", "load_predictor_log1p": True}]
    found = plan(
        {
            "planner_scaling_policy": ["throughput_600_5", "hybrid_180_5"],
            "load_predictor_candidates": predictors,
        },
        FakeEngine(windows=[SteadyWindow()] * 4),
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


def test_a_kv_load_is_part_of_the_branch(plan: Callable[..., SweepPlan]) -> None:
    lengths = {"isl": 10, "osl": 10, "num_request_ratio": 1}
    ranged = plan(workload=lengths, goal={"target": "pareto"})
    assert ranged.branches[0].kv_load == (0.0, 1.0)
    fixed = plan(workload={**lengths, "kv_load_ratio": 0.5})
    assert fixed.branches[0].kv_load == 0.5


def test_a_plan_is_described_in_plain_values(plan: Callable[..., SweepPlan]) -> None:
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
