"""From a selection to one flat sample, the load it is replayed under, and the key of both."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from schemas.goal import PlannerTarget
from schemas.messages import Sample
from schemas.presets import (
    FPM_SAMPLINGS,
    LOAD_SENSITIVITIES,
    SCALING_POLICIES,
    expand,
    expand_load_predictor,
)
from schemas.search_space import (
    OFFLOAD_SCALARS,
    Backend,
    CompositeEntry,
    Role,
    SearchSpace,
)
from spica_async.space.branch import Selection
from spica_async.space.capacity import CapacityKey, CapacityTable, rejection
from spica_async.space.knobs import OFFLOAD_WEIGHTS, ROUTER_WEIGHTS
from spica_async.space.pool import RoleDeployment

_DEPLOYMENT_SCALARS = (
    "model_name",
    "hardware_sku",
    "gpu_budget",
    "min_gpu_budget",
    "min_endpoint",
    "context_length",
    "startup_time",
    "aic_nextn",
    "moe_backend",
)
_ROLE_SCALARS = ("block_size", "gpu_memory_utilization", "enable_prefix_caching")
_ROLE_KNOBS = ("max_num_batched_tokens", "max_num_seqs")

# Fields of a sample that no replay can depend on: names, and figures derived from other fields.
_DERIVED = frozenset({"planner_scaling_policy", "kv_load_ratio", "used_gpus"})
_PLANNER_LIMITS = frozenset({"gpu_budget", "min_gpu_budget", "min_endpoint"})
# Reactive scaling alone has no use for it. Replays do depend on the FPM fields under it.
_THROUGHPUT_ONLY = frozenset({"throughput_adjustment_interval_seconds"})


@dataclass(frozen=True)
class SampleContext:
    """What is the same for every sample of a sweep.

    Attributes:
        space: the search space, for its scalars.
        is_moe: whether the model has experts.
        longest_sequence: tokens of the longest sequence that every worker must be able to hold.
        capacity: the engine's KV capacity of each shape.
        predictors: the winner of the load-predictor sub-sweep for each throughput interval.
        planner_target: what the planner optimises under the sweep's goal.
        backend_versions: of each backend, the version whose measurements time its steps.
        isl: input tokens of a KV-load request.
        osl: output tokens of a KV-load request.
        facts: what is recorded with every candidate of the sweep.
    """

    space: SearchSpace
    is_moe: bool
    longest_sequence: int
    capacity: CapacityTable
    predictors: Mapping[int, CompositeEntry]
    planner_target: PlannerTarget
    backend_versions: Mapping[Backend, str] = field(default_factory=dict)
    isl: int = 0
    osl: int = 0
    facts: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResolvedSample:
    """A sample with the concurrency its KV load stands for, or why it has no room.

    `facts` is what is recorded with the candidate: capacities in tokens, and of the KV load.
    """

    sample: Sample
    facts: Mapping[str, JsonValue]
    no_kv_room: str | None = None


def static_sample(space: SearchSpace, selection: Selection, *, is_moe: bool) -> Sample:
    """The deployment alone, behind round robin and without a planner: enough to try it out."""
    return {
        **_deployment_fields(space, selection, is_moe=is_moe),
        "router_mode": "round_robin",
        "planner_scaling_policy": "disabled",
        "enable_throughput_scaling": False,
        "enable_load_scaling": False,
    }


def unroll_sample(context: SampleContext, selection: Selection) -> Sample:
    """Write a selection out as one flat dict that holds only what is active."""
    return {
        **_deployment_fields(context.space, selection, is_moe=context.is_moe),
        **_router_fields(context.space, selection),
        **_planner_fields(context, selection),
    }


def resolve_kv_load(context: SampleContext, selection: Selection, sample: Sample) -> ResolvedSample:
    """Check that every role has KV room, and turn a KV load ratio into a concurrency.

    With `usable` the per-rank tokens in whole blocks of the role that decodes,
    `capacity = floor(usable * attention_dp * replicas / (isl + floor(osl / 2)))` requests and
    `concurrency = max(1, floor(ratio * capacity))`.
    """
    facts = dict(context.facts)
    version = context.backend_versions.get(selection.backend)
    if version is not None:
        facts["backend_version"] = version
    capacity_tokens = 0
    # Decode is last, and agg is alone: the role that decodes is the one that ends the loop.
    for role, deployment in selection.config.roles:
        batched = sample[f"{role}_max_num_batched_tokens"]
        block_size = sample[f"{role}_block_size"]
        assert isinstance(batched, int)  # noqa: S101  # an engine knob
        assert isinstance(block_size, int)  # noqa: S101  # an engine scalar
        per_rank = context.capacity[CapacityKey(selection.backend, role, deployment.shape, batched)]
        problem = rejection(per_rank, context.longest_sequence)
        if problem is not None or isinstance(per_rank, str):
            return ResolvedSample(sample, facts, no_kv_room=f"{role}: {problem}")
        usable = per_rank // block_size * block_size
        capacity_tokens = usable * deployment.shape.attention_dp * deployment.replicas
        facts[f"{role}_kv_capacity_tokens"] = capacity_tokens
    if selection.kv_load_ratio is None:
        return ResolvedSample(sample, facts)
    capacity = capacity_tokens // (context.isl + context.osl // 2)
    concurrency = max(1, math.floor(selection.kv_load_ratio * capacity))
    facts |= {
        "kv_load_ratio": selection.kv_load_ratio,
        "concurrency": concurrency,
        "kv_load_concurrency_capacity": capacity,
        "kv_load_capacity_tokens": capacity_tokens,
    }
    loaded = sample | {"kv_load_ratio": selection.kv_load_ratio, "concurrency": concurrency}
    if capacity < 1:
        return ResolvedSample(loaded, facts, no_kv_room="the KV cache holds not one request")
    return ResolvedSample(loaded, facts)


def sample_key(sample: Sample) -> str:
    """A canonical text of what can reach the engine: equal keys are one and the same replay."""
    dropped = set(_DERIVED)
    if not _planner_runs(sample):
        dropped |= _PLANNER_LIMITS
    if not sample["enable_throughput_scaling"]:
        dropped |= _THROUGHPUT_ONLY
    kept = {
        name: value
        for name, value in sample.items()
        if name not in dropped and not name.endswith("strategy")
    }
    return json.dumps(kept, sort_keys=True, separators=(",", ":"))


def _planner_runs(sample: Sample) -> bool:
    return bool(sample["enable_throughput_scaling"] or sample["enable_load_scaling"])


def _given(space: SearchSpace, names: tuple[str, ...]) -> Sample:
    values = {name: getattr(space, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _deployment_fields(space: SearchSpace, selection: Selection, *, is_moe: bool) -> Sample:
    fields: Sample = {
        "deployment_mode": selection.mode,
        "backend": selection.backend,
        "is_moe": is_moe,
        "num_g2_blocks": space.num_g2_blocks,
    }
    fields |= _given(space, _DEPLOYMENT_SCALARS)
    if not space.aic_nextn:
        # Off: the engine knows no depth of 0.
        fields.pop("aic_nextn", None)
    if selection.backend != "sglang" or not is_moe:
        # It chooses a kernel of SGLang's experts, and the engine refuses it anywhere else.
        fields.pop("moe_backend", None)
    if space.num_g2_blocks:
        fields |= _given(space, OFFLOAD_SCALARS)
    for role, deployment in selection.config.roles:
        fields |= _role_fields(space, selection, role, deployment)
    fields["used_gpus"] = selection.config.used_gpus
    return fields


def _role_fields(
    space: SearchSpace, selection: Selection, role: Role, deployment: RoleDeployment
) -> Sample:
    prefix = "" if role == "agg" else f"{role}_"
    shape = deployment.shape
    fields: Sample = {
        f"{prefix}tp": shape.tp,
        f"{prefix}pp": 1,
        f"{prefix}attention_dp": shape.attention_dp,
        f"{prefix}moe_tp": shape.moe_tp,
        f"{prefix}moe_ep": shape.moe_ep,
        f"{prefix}strategy": shape.strategy,
        f"{prefix}replicas": deployment.replicas,
    }
    for knob in _ROLE_KNOBS:
        name = f"{role}_{knob}"
        fields[name] = _chosen(space, selection, name)
    return fields | _given(space, tuple(f"{role}_{scalar}" for scalar in _ROLE_SCALARS))


def _router_fields(space: SearchSpace, selection: Selection) -> Sample:
    mode = _chosen(space, selection, "router_mode")
    if mode != "kv_router":
        return {"router_mode": mode}
    chosen = {
        name: selection.knobs[name]
        for name in (*ROUTER_WEIGHTS, *OFFLOAD_WEIGHTS)
        if name in selection.knobs
    }
    return {"router_mode": mode, **chosen}


def _planner_fields(context: SampleContext, selection: Selection) -> Sample:
    policy = _composite(context.space, selection, "planner_scaling_policy")
    scaling = expand(policy, SCALING_POLICIES)
    fields: Sample = {
        "planner_scaling_policy": policy,
        "enable_throughput_scaling": scaling["enable_throughput_scaling"],
        "enable_load_scaling": scaling["enable_load_scaling"],
    }
    if not _planner_runs(fields):
        return fields
    fpm = _composite(context.space, selection, "planner_fpm_sampling")
    sensitivity = _composite(context.space, selection, "planner_load_sensitivity")
    fields |= scaling
    fields |= expand(fpm, FPM_SAMPLINGS)
    fields |= expand(sensitivity, LOAD_SENSITIVITIES)
    fields["planner_optimization_target"] = context.planner_target
    if scaling["enable_throughput_scaling"]:
        interval = scaling["throughput_adjustment_interval_seconds"]
        assert isinstance(interval, int)  # noqa: S101  # validated with the configuration
        fields |= expand_load_predictor(context.predictors[interval])
    return fields


def _chosen(space: SearchSpace, selection: Selection, name: str) -> JsonValue:
    # A knob that a study leaves out changes nothing, so that any entry of it will do.
    entries: list[JsonValue] = getattr(space, name)
    return selection.knobs.get(name, entries[0])


def _composite(space: SearchSpace, selection: Selection, name: str) -> CompositeEntry:
    entry = _chosen(space, selection, name)
    assert isinstance(entry, str | dict)  # noqa: S101  # validated with the configuration
    return entry


def is_noisy(sample: Sample) -> bool:
    """Whether two replays of a sample may differ: where a KV router chooses, planner or not.

    Args:
        sample: as `unroll_sample` writes it.
    """
    return sample.get("router_mode") == "kv_router"
