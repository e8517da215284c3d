"""From one flat sample to what Dynamo Replay receives: engine, router and planner arguments.

Pure: nothing of Dynamo is imported, so a test may compare two samples' arguments in no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from schemas.goal import SLATarget
from schemas.presets import COMPOSITE_MODELS
from schemas.search_space import Role

Arguments = dict[str, Any]

WORKER_TYPES: Final[Mapping[Role, str]] = {
    "agg": "aggregated",
    "prefill": "prefill",
    "decode": "decode",
}
MEMORY_FRACTION_KEYS: Final[Mapping[str, str]] = {
    "vllm": "gpu_memory_utilization",
    "sglang": "mem_fraction_static",
    "trtllm": "free_gpu_memory_fraction",
}
_OFFLOAD_BANDWIDTHS: Final[Mapping[str, str]] = {
    "bandwidth_g1_to_g2_gbps": "d2h_bandwidth_gbps",
    "bandwidth_g2_to_g1_gbps": "h2d_bandwidth_gbps",
}
_ROUTER_WEIGHTS: Final = ("overlap_score_credit", "prefill_load_scale", "router_temperature")
_OFFLOAD_ROUTER_WEIGHTS: Final = ("host_cache_hit_weight", "disk_cache_hit_weight")
_PLANNER_FIELDS: Final = (
    *(name for model in COMPOSITE_MODELS.values() for name in model.model_fields),
)
# Without these each replay opens ports and writes megabytes of HTML.
_PLANNER_SILENCE: Final[Mapping[str, Any]] = {
    "report_interval_hours": None,
    "live_dashboard_port": 0,
    "control_api_port": 0,
    "metric_pulling_prometheus_extra_query_params": None,
}

SampleView = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tables:
    """Where a timing model finds its performance tables, if not where the engine has its own.

    Attributes:
        systems: A folder that stands for the engine's folder of systems.
        version: The backend's version whose tables it has.
    """

    systems: Path
    version: str


def roles(sample: SampleView) -> tuple[Role, ...]:
    """The roles that the sample deploys, in the order in which a request meets them."""
    return ("agg",) if sample["deployment_mode"] == "agg" else ("prefill", "decode")


def shape_field(sample: SampleView, role: Role, name: str) -> Any:
    """A field of a role's parallel shape, e.g. `tp`; agg shapes carry no prefix."""
    return sample[name if role == "agg" else f"{role}_{name}"]


def gpus_per_worker(sample: SampleView, role: Role) -> int:
    """GPUs of one replica of `role`."""
    tp, pp, attention_dp = (
        int(shape_field(sample, role, name)) for name in ("tp", "pp", "attention_dp")
    )
    return tp * pp * attention_dp


def engine_config(sample: SampleView, role: Role, tables: Tables | None = None) -> Arguments:
    """The launch configuration of one replica, as `normalize_mocker_config` takes it.

    Args:
        sample: A flat sample that deploys `role`.
        role: Which replica to describe.
        tables: The performance tables to time steps with; None for the engine's own.

    Raises:
        KeyError: if the sample lacks a field of the role.
    """
    backend = sample["backend"]
    attention_dp = shape_field(sample, role, "attention_dp")
    engine: Arguments = {
        "backend": backend,
        "worker_type": WORKER_TYPES[role],
        "block_size": sample[f"{role}_block_size"],
        "max_num_batched_tokens": sample[f"{role}_max_num_batched_tokens"],
        "max_num_seqs": sample[f"{role}_max_num_seqs"],
        # A decode worker receives its KV blocks from prefill: it has no prefixes of its own.
        "enable_prefix_caching": role != "decode" and sample[f"{role}_enable_prefix_caching"],
        "timing_model": {
            "type": "external",
            "provider": "ais",
            "config": _timing_config(sample, role, tables),
        },
    }
    if sample.get("context_length") is not None:
        engine["max_model_len"] = sample["context_length"]
    if sample.get("aic_nextn") is not None:
        engine["aic_nextn"] = sample["aic_nextn"]
    if role != "decode" and sample.get("num_g2_blocks", 0) > 0:
        engine["native_host_offload"] = {
            "num_host_blocks": sample["num_g2_blocks"],
            **_present(sample, _OFFLOAD_BANDWIDTHS),
        }
        engine["kv_cache_bytes_per_token"] = sample["kv_bytes_per_token"]
    if backend == "sglang":
        engine["sglang"] = _sglang_limits(sample, role)
    return {
        MEMORY_FRACTION_KEYS[backend]: sample[f"{role}_gpu_memory_utilization"],
        "dp_size": attention_dp,
        **_present(sample, {"startup_time": "startup_time"}),
        "engine": engine,
    }


def router_arguments(sample: SampleView) -> Arguments | None:
    """The keywords of `KvRouterConfig`, or None where no KV router runs."""
    if sample["router_mode"] != "kv_router":
        return None
    weights: tuple[str, ...] = _ROUTER_WEIGHTS
    if sample.get("num_g2_blocks", 0) > 0:
        weights += _OFFLOAD_ROUTER_WEIGHTS
    return {name: sample[name] for name in weights if name in sample}


def planner_arguments(sample: SampleView, sla: SLATarget | None) -> Arguments | None:
    """The fields of `PlannerConfig`, or None where both scaling loops are off.

    Args:
        sample: A flat sample.
        sla: The levels that the planner holds when its target is `sla`, in milliseconds.

    Raises:
        ValueError: if the planner's target is `sla` and TTFT or ITL is missing.
    """
    if not (sample["enable_throughput_scaling"] or sample["enable_load_scaling"]):
        return None
    target = sample["planner_optimization_target"]
    mode = sample["deployment_mode"]
    fields: Arguments = {
        "mode": mode,
        "backend": sample["backend"],
        "optimization_target": target,
        "max_gpu_budget": sample["gpu_budget"],
        **_present(sample, {"min_gpu_budget": "min_gpu_budget", "min_endpoint": "min_endpoint"}),
        **{name: sample[name] for name in _PLANNER_FIELDS if sample.get(name) is not None},
        **_PLANNER_SILENCE,
    }
    if target == "sla":
        if sla is None or not sla.has_token_levels:
            raise ValueError("the planner's sla target needs ttft_ms and itl_ms")
        fields |= {"ttft_ms": sla.ttft_ms, "itl_ms": sla.itl_ms}
    # The planner counts an aggregated engine as a decode engine.
    for role in roles(sample):
        name = "prefill" if role == "prefill" else "decode"
        fields[f"{name}_engine_num_gpu"] = gpus_per_worker(sample, role)
    return fields


def _timing_config(sample: SampleView, role: Role, tables: Tables | None) -> Arguments:
    config: Arguments = {
        "model": sample["model_name"],
        "system": sample["hardware_sku"],
        "backend": sample["backend"],
        "worker_type": WORKER_TYPES[role],
        "tp": shape_field(sample, role, "tp"),
        "pp": shape_field(sample, role, "pp"),
        "attention_dp": shape_field(sample, role, "attention_dp"),
        **_present(sample, {"aic_nextn": "nextn"}),
    }
    if sample["is_moe"]:
        config["moe_tp_size"] = shape_field(sample, role, "moe_tp")
        config["moe_ep_size"] = shape_field(sample, role, "moe_ep")
        config |= _present(sample, {"moe_backend": "moe_backend"})
    if tables is not None:
        config |= {"backend_version": tables.version, "systems_paths": [str(tables.systems)]}
    return config


def _sglang_limits(sample: SampleView, role: Role) -> Arguments:
    """SGLang's scheduler reads the token budget of a step from its own two fields."""
    tokens = sample[f"{role}_max_num_batched_tokens"]
    return {"max_prefill_tokens": tokens, "chunked_prefill_size": tokens}


def _present(sample: SampleView, names: Mapping[str, str]) -> Arguments:
    return {
        target: sample[source] for source, target in names.items() if sample.get(source) is not None
    }
