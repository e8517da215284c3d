"""Flat samples and loads as the coordinator writes them, made by hand."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from schemas.goal import SLATarget
from schemas.messages import EvaluationRequest, Load, Sample, SyntheticLoad, TraceLoad
from schemas.presets import FPM_SAMPLINGS, LOAD_SENSITIVITIES, SCALING_POLICIES, expand

SLA = SLATarget(ttft_ms=2000, itl_ms=50)
ROLE_SETTINGS = {
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 256,
    "block_size": 64,
    "gpu_memory_utilization": 0.9,
    "enable_prefix_caching": True,
}
KV_ROUTER = {
    "router_mode": "kv_router",
    "overlap_score_credit": 1.0,
    "prefill_load_scale": 4.0,
    "router_temperature": 0.0,
}
OFFLOAD = {
    "num_g2_blocks": 20_000,
    "kv_bytes_per_token": 131_072,
    "bandwidth_g1_to_g2_gbps": 50.0,
    "bandwidth_g2_to_g1_gbps": 50.0,
}
OFFLOAD_WEIGHTS = {"host_cache_hit_weight": 0.75, "disk_cache_hit_weight": 0.25}
MINIMAX = "MiniMaxAI/MiniMax-M2.5"
GLM = "zai-org/GLM-5-FP8"


def _deployment(**overrides: Any) -> Sample:
    return {
        "backend": "vllm",
        "model_name": "Qwen/Qwen3-32B",
        "hardware_sku": "h200_sxm",
        "gpu_budget": 32,
        "is_moe": False,
        "num_g2_blocks": 0,
        "router_mode": "round_robin",
        "planner_scaling_policy": "disabled",
        "enable_throughput_scaling": False,
        "enable_load_scaling": False,
        **overrides,
    }


def shape(prefix: str = "", **fields: Any) -> Sample:
    """A parallel shape with its replicas; what is not given is 1."""
    names = ("tp", "pp", "attention_dp", "moe_tp", "moe_ep", "replicas")
    values = {name: fields.pop(name, 1) for name in names}
    assert not fields
    return {f"{prefix}{name}": value for name, value in values.items()}


def _role(role: str, overrides: Sample) -> Sample:
    settings = {f"{role}_{name}": value for name, value in ROLE_SETTINGS.items()}
    if role == "decode":
        settings["decode_enable_prefix_caching"] = False
    return settings | {name: value for name, value in overrides.items() if name in settings}


def agg(**overrides: Any) -> Sample:
    """Two replicas of TP2, Qwen3-32B on h200_sxm."""
    sample = {
        **_deployment(deployment_mode="agg"),
        **shape(tp=2, replicas=2),
        **_role("agg", overrides),
        **overrides,
    }
    used = sample["tp"] * sample["attention_dp"] * sample["replicas"]
    return {**sample, "used_gpus": used}


def disagg(**overrides: Any) -> Sample:
    """Two prefill replicas of TP2 and one decode replica of TP4, Qwen3-32B on h200_sxm."""
    sample = {
        **_deployment(deployment_mode="disagg"),
        **shape("prefill_", tp=2, replicas=2),
        **shape("decode_", tp=4),
        **_role("prefill", overrides),
        **_role("decode", overrides),
        **overrides,
    }
    used = sum(
        sample[f"{role}_tp"] * sample[f"{role}_attention_dp"] * sample[f"{role}_replicas"]
        for role in ("prefill", "decode")
    )
    return {**sample, "used_gpus": used}


def minimax(**overrides: Any) -> Sample:
    """Eight replicas of TP4/EP4, MiniMax-M2.5 on b200_sxm: the published deployment."""
    fields = {
        "model_name": MINIMAX,
        "hardware_sku": "b200_sxm",
        "is_moe": True,
        **shape(tp=4, moe_ep=4, replicas=8),
        "agg_max_num_batched_tokens": 16_384,
        "agg_max_num_seqs": 512,
    }
    return agg(**(fields | overrides))


def scaled(policy: str, target: str = "sla", **overrides: Any) -> Sample:
    """The planner's fields under a policy preset, with the default samplings."""
    fields = {
        "planner_scaling_policy": policy,
        "planner_optimization_target": target,
        **expand(policy, SCALING_POLICIES),
        **expand("default", FPM_SAMPLINGS),
        **expand("default", LOAD_SENSITIVITIES),
    }
    if fields["enable_throughput_scaling"]:
        fields |= {"load_predictor": "constant", "load_predictor_log1p": False}
    return fields | overrides


def synthetic(**overrides: Any) -> SyntheticLoad:
    """Two hundred requests of 1,024 + 128 tokens, 32 in flight."""
    fields = {"isl": 1024, "osl": 128, "requests": 200, "concurrency": 32}
    return SyntheticLoad(**(fields | overrides))


def trace(path: Path, **overrides: Any) -> TraceLoad:
    """A trace on disk as a load; its digest is of no interest to a replay."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return TraceLoad(
        path=str(path),
        sha256="0" * 64,
        size_bytes=path.stat().st_size,
        requests=len(rows),
        total_tokens=sum(row["input_length"] + row["output_length"] for row in rows),
        **overrides,
    )


def request(sample: Sample, load: Load, sla: SLATarget | None = None) -> EvaluationRequest:
    return EvaluationRequest(evaluation_id="e", sweep_id="s", sample=sample, load=load, sla=sla)


def conversation_trace() -> Path:
    """The published conversation trace; the test is skipped where it is not at hand."""
    default = Path(__file__).parents[3] / "shared" / "traces"
    path = Path(os.environ.get("SPICA_TRACES", default)) / "conversation_trace.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is not there: set SPICA_TRACES to the folder of the traces")
    return path


def first_requests(path: Path, count: int, folder: Path) -> Path:
    """A trace of the first `count` requests of another."""
    shorter = folder / f"first-{count}.jsonl"
    with path.open() as source:
        shorter.write_text("".join(line for line, _ in zip(source, range(count), strict=False)))
    return shorter
