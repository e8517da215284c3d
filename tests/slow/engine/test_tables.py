"""Prepared tables against the engine's own: all that is read from them, and what replays report.

Another engine version shows here whether it still reads no more of a table than is left of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.engine_samples import (
    GLM,
    OFFLOAD,
    SLA,
    agg,
    disagg,
    minimax,
    request,
    scaled,
    shape,
    synthetic,
    trace,
)

from schemas.messages import Load, Sample
from spica_async.engine import facts, runtime
from spica_async.engine.evaluation import evaluate
from spica_async.engine.table_layout import Origin, write_tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

BACKENDS = ("vllm", "sglang", "trtllm")
B200 = {"hardware_sku": "b200_sxm"}
QWEN_MOE = {"model_name": "Qwen/Qwen3-235B-A22B-FP8", "is_moe": True}
DEEPSEEK = {"model_name": "deepseek-ai/DeepSeek-R1", "is_moe": True}
EIGHT = shape(tp=8, moe_ep=8)
PAIR = shape(tp=2, moe_ep=2)
SAMPLES: dict[str, Sample] = {
    **{f"agg {backend}": agg(backend=backend) for backend in BACKENDS},
    **{f"disagg {backend}": disagg(backend=backend) for backend in BACKENDS},
    **{f"moe {backend}": minimax(backend=backend) for backend in BACKENDS},
    "eight GPUs": agg(tp=8, replicas=1),
    "one GPU": agg(tp=1, replicas=1, model_name="Qwen/Qwen3-8B"),
    "fp8": agg(model_name="Qwen/Qwen3-32B-FP8"),
    "fp8 per tensor": agg(model_name="Qwen/Qwen3-32B-FP8-Static-PerTensor"),
    "nvfp4": agg(model_name="nvidia/MiniMax-M2.5-NVFP4", is_moe=True, **B200, **PAIR),
    "l40s": agg(hardware_sku="l40s", model_name="Qwen/Qwen3-8B"),
    "a100": agg(hardware_sku="a100_sxm", model_name="Qwen/Qwen3-8B"),
    "speculation": agg(aic_nextn=2),
    "offload": agg(**OFFLOAD),
    "experts split by tensor": minimax(**shape(tp=4, moe_tp=4, replicas=2)),
    "split by attention": minimax(**shape(attention_dp=8, moe_ep=8)),
    "lent experts": agg(backend="trtllm", **QWEN_MOE, **EIGHT),
    "qwen moe": agg(**QWEN_MOE, **shape(tp=4, moe_ep=4)),
    "mla trtllm": agg(backend="trtllm", **B200, **DEEPSEEK, **EIGHT),
    "mla vllm": agg(**B200, **DEEPSEEK, **EIGHT),
    "wide ep": agg(backend="sglang", **DEEPSEEK, **shape(attention_dp=8, moe_ep=8)),
    "sparse attention": disagg(
        backend="sglang",
        model_name=GLM,
        is_moe=True,
        **B200,
        **shape("prefill_", attention_dp=8, moe_ep=8, replicas=2),
        **shape("decode_", attention_dp=8, moe_tp=8, replicas=2),
    ),
    "linear attention": agg(backend="sglang", model_name="Qwen/Qwen3.5-27B", **B200),
    "sliding windows": agg(model_name="google/gemma-4-26B-A4B", is_moe=True, **PAIR),
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES.keys())
def test_a_report_is_the_same_to_the_last_bit(sample: Sample) -> None:
    asked = request(sample, synthetic(requests=100), SLA)
    plain, ours = evaluate(asked, prepared=False), evaluate(asked)
    assert plain.outcome == "feasible", plain.detail
    assert ours.report == plain.report


def test_a_planner_starts_from_them_alike(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    row = {"input_length": 1024, "output_length": 64, "hash_ids": [1, 2]}
    rows = [{**row, "timestamp": 1000 * (index // 4)} for index in range(400)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    load: Load = trace(path)
    asked = request(agg(replicas=4, **scaled("throughput_180_5")), load, SLA)
    plain, ours = evaluate(asked, prepared=False), evaluate(asked)
    assert plain.outcome == "feasible", plain.detail
    assert ours.report == plain.report


def _measured_on(backend: str) -> list[Origin]:
    """The tables of each system that there are measurements of."""
    found = []
    for sku in facts.known_skus():
        try:
            version = facts.backend_version(sku, backend)
        except facts.NoPerfDatabaseError:
            continue
        found.append(Origin(facts.systems_folder(sku), sku, backend, version))
    return found


def _looked_up(origin: Origin, systems: Path) -> dict[str, Any]:
    """Every table as the engine folds it from its rows, and how it counts kernels' rows."""
    views = runtime.load("aisimulate_core.sdk.engine_table_view")
    databases = runtime.load("aisimulate_core.sdk.perf_database")
    database = databases.get_database(
        origin.sku, origin.backend, origin.version, systems_paths=[str(systems)]
    )
    tables = {name: views.fetch_table_view(database, name) for name in views.VIEW_KEY_LAYERS}
    density = {
        f"{name} {shared}": views.fetch_attention_lane_density(database, name, shared_layer=shared)
        for name in ("_context_attention_data", "_generation_attention_data")
        for shared in (True, False)
    }
    return tables | density


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_table_of_every_system_holds_the_same(backend: str, tmp_path: Path) -> None:
    for origin in _measured_on(backend):
        target = tmp_path / origin.sku
        target.mkdir()
        write_tables(origin, target)
        theirs = _looked_up(origin, origin.systems)
        ours = _looked_up(origin, target)
        assert [name for name in theirs if theirs[name] is not None], origin
        differing = [name for name in theirs if theirs[name] != ours[name]]
        assert not differing, origin
        runtime.load("aisimulate_core.sdk.operations.base").clear_all_op_caches()
