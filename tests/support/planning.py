"""Planning with an engine whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import JsonValue

from schemas.config import SmartSearchConfig
from schemas.goal import PlannerTarget
from schemas.messages import Sample, TraceLoad
from schemas.search_space import Backend, DeploymentMode, PinnedShape, Role
from spica_async.engine.context import ContextExtension
from spica_async.engine.default_shape import NoDefaultShapeError
from spica_async.engine.estimates import Steps, StepTimes
from spica_async.engine.facts import (
    HardwareFacts,
    ModelFacts,
    NoPerfDatabaseError,
    UnknownModelError,
    UnknownSkuError,
)
from spica_async.engine.planner import Predictor, WindowLoad
from spica_async.engine.refusals import ShapeRejectedError
from spica_async.errors import InputError
from spica_async.plan.build import plan_sweep
from spica_async.plan.types import SweepPlan
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
CLOSED_LOOP = {
    "concurrency": 4,
    "isl": 1000,
    "osl": 100,
    "num_request_ratio": 2.0,
    "window": "whole",  # what scripted workers answer has no other
}


def scaling(sample: Sample, role: Role, steps: Steps) -> StepTimes:
    """Steps that more GPUs shorten, each by less than the one before."""
    prefix = "" if role == "agg" else f"{role}_"
    gpus = cast("int", sample[f"{prefix}tp"]) * cast("int", sample[f"{prefix}attention_dp"])
    speed = gpus**0.7
    uncached = steps.isl - steps.cached
    return StepTimes(
        tuple(batch * uncached * 0.1 / speed for batch in steps.prefill_batches),
        tuple((20 + batch * 0.1) / speed for batch in steps.decode_batches),
    )


@dataclass
class FakeEngine:
    """Answers as a test lists, and remembers what it was asked."""

    is_moe: bool = False
    max_context: int = 4096
    extension: ContextExtension | None = None
    tokens: Callable[[Sample, Role], int] = lambda *_: ROOMY
    unsupported: Mapping[tuple[Backend, DeploymentMode], str] = field(default_factory=dict)
    unmeasured: frozenset[str] = frozenset()
    ignored: Mapping[Backend, Mapping[str, str]] = field(default_factory=dict)
    unread_without_sla: Mapping[str, str] = field(default_factory=dict)
    unrepresentable_scalars: Mapping[str, str] = field(
        default_factory=lambda: {"offload_batch_size": "there are no batches"}
    )
    steps: Callable[[Sample, Role, Steps], StepTimes | str] = scaling
    planner_problem: str | None = None
    windows: Sequence[WindowLoad] = ()
    default: PinnedShape | str = field(default_factory=lambda: PinnedShape(tp=2, replicas=2))
    asked_for_capacity: list[tuple[str, Role, ParallelShape, int]] = field(default_factory=list)
    probed: list[Sample] = field(default_factory=list)

    def model_facts(self, model: str) -> ModelFacts:
        if model == "unknown":
            raise UnknownModelError("model 'unknown' is unknown")
        # No node holds the experts of a MoE model twice.
        weights = 10**12 if self.is_moe else 10**9
        return ModelFacts(
            model, "AnyForCausalLM", self.is_moe, self.max_context, weights, self.extension
        )

    def hardware_facts(self, sku: str) -> HardwareFacts:
        if sku == "unknown":
            raise UnknownSkuError("hardware_sku 'unknown' is unknown; known: some_gpu")
        return HardwareFacts(sku, 8, 10**11)

    def backend_version(self, sku: str, backend: Backend) -> str:
        if backend in self.unmeasured:
            raise NoPerfDatabaseError(f"no performance data for {backend} on {sku}")
        return f"{backend} 1.0"

    def default_shape(self, model: str, sku: str, backend: Backend, gpus: int) -> PinnedShape:
        if isinstance(self.default, str):
            raise NoDefaultShapeError(self.default)
        return self.default

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

    def step_times(
        self, workers: Sequence[tuple[Sample, Role]], steps: Steps
    ) -> Sequence[StepTimes | str]:
        return [self.steps(sample, role, steps) for sample, role in workers]

    def ignored_knobs(self, backend: Backend) -> Mapping[str, str]:
        return self.ignored.get(backend, {})

    def unread_planner_knobs(self, planner_target: PlannerTarget) -> Mapping[str, str]:
        return {} if planner_target == "sla" else self.unread_without_sla

    def check_planner_fields(self, fields: Mapping[str, JsonValue]) -> str | None:
        return self.planner_problem

    def trace_windows(self, path: Path, interval_seconds: int) -> Sequence[WindowLoad]:
        return self.windows

    def make_predictor(self, fields: Mapping[str, JsonValue], interval_seconds: int) -> Predictor:
        return LastValue(1.0 if fields["load_predictor_log1p"] else 2.0)


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


def plan(
    space: Mapping[str, Any] | None = None,
    engine: FakeEngine | None = None,
    trace: TraceLoad | None = None,
    **blocks: Any,
) -> SweepPlan:
    """Plan a small aggregate sweep with these blocks; nothing is set that has no effect."""
    document = {"search_space": {**SMALL, **(space or {})}, "workload": CLOSED_LOOP, **blocks}
    config = SmartSearchConfig.model_validate(document)
    return plan_sweep(config, engine or FakeEngine(), trace, lambda _: None)


def refusal(*arguments: Any, **blocks: Any) -> str:
    """What `plan` refuses these arguments with."""
    with pytest.raises(InputError) as found:
        plan(*arguments, **blocks)
    return str(found.value)


def configs(found: SweepPlan, branch: int = 0) -> list[str]:
    """The configurations of one branch's pool, in its order."""
    pool = found.branches[branch].pool
    return [str(pool[index]) for index in range(len(pool))]
