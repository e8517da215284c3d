"""Describes in a few words what a sample deploys, and how samples differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from schemas.messages import Sample
from schemas.presets import COMPOSITE_MODELS
from schemas.search_space import PinnedShape

# What `deployment` already says, or what follows from it.
_SAID = (
    *PinnedShape.model_fields,
    "strategy",
    "used_gpus",
    "backend",
    "deployment_mode",
    "router_mode",
    "planner_scaling_policy",
)
# Expansions of a preset that is named anyway, and what a KV load comes to.
_EXPANDED = (
    *COMPOSITE_MODELS["planner_scaling_policy"].model_fields,
    "kv_load_ratio",
    "planner_optimization_target",
)
_SHORT = {"max_num_batched_tokens": "batched tokens", "max_num_seqs": "seqs"}


def deployment(sample: Sample) -> str:
    """Backend, shapes and replicas, e.g. `vllm agg 4 x tp 2` or `sglang prefill 2 x dep 8, ...`."""
    if sample["deployment_mode"] == "agg":
        return f"{sample['backend']} agg {_role(sample, '')}"
    prefill, decode = _role(sample, "prefill_"), _role(sample, "decode_")
    return f"{sample['backend']} prefill {prefill} + decode {decode}"


def traffic_handling(sample: Sample) -> str:
    """The router and, when one scales, the planner's policy."""
    policy = sample["planner_scaling_policy"]
    if isinstance(policy, dict):
        policy = _policy(policy)
    router = str(sample["router_mode"])
    return router if policy == "disabled" else f"{router}, {policy}"


def differing_knobs(samples: Sequence[Sample]) -> list[str]:
    """The knobs, beside what `deployment` and `traffic_handling` say, in which samples differ."""
    said = {
        *_EXPANDED,
        *(f"{prefix}{name}" for prefix in ("", "prefill_", "decode_") for name in _SAID),
    }
    names = dict.fromkeys(name for sample in samples for name in sample if name not in said)
    return [
        name
        for name in names
        if len({str(sample[name]) for sample in samples if name in sample}) > 1
    ]


def settings(sample: Sample, names: Sequence[str]) -> str:
    """The named knobs of a sample, e.g. `seqs 512, router_temperature 0.2`."""
    return ", ".join(f"{_short(name)} {sample[name]}" for name in names if name in sample)


def _policy(fields: Mapping[str, object]) -> str:
    """A policy without a name, by its loops and their intervals, e.g. `throughput 240 s`."""
    loops = [
        f"{loop} {fields[f'{loop}_adjustment_interval_seconds']} s"
        for loop in ("throughput", "load")
        if fields[f"enable_{loop}_scaling"]
    ]
    return " + ".join(loops) or "disabled"


def _role(sample: Sample, prefix: str) -> str:
    strategy = sample[f"{prefix}strategy"]
    gpus = int(str(sample[f"{prefix}tp"])) * int(str(sample[f"{prefix}attention_dp"]))
    return f"{sample[f'{prefix}replicas']} x {strategy} {gpus}"


def _short(name: str) -> str:
    for long, short in _SHORT.items():
        if name.endswith(long):
            return name.removesuffix(long).replace("agg_", "").replace("_", " ") + short
    return name
