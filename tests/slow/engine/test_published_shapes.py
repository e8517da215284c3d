"""What was published of an earlier engine version, seen again: orders and distances, not digits."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from support.engine_samples import (
    KV_ROUTER,
    SLA,
    conversation_trace,
    first_requests,
    minimax,
    request,
    scaled,
    trace,
)

from schemas.goal import SLATarget
from schemas.messages import Sample, TraceLoad
from spica_async.engine.evaluation import evaluate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def _report(sample: Sample, load: TraceLoad, sla: SLATarget | None = None) -> dict[str, float]:
    measured = evaluate(request(sample, load, sla))
    assert measured.report is not None, measured.detail
    return measured.report


@pytest.fixture(scope="module")
def closed_loop(tmp_path_factory: pytest.TempPathFactory) -> TraceLoad:
    folder = tmp_path_factory.mktemp("traces")
    return trace(first_requests(conversation_trace(), 2_000, folder), concurrency=32)


def test_a_heavier_prefill_load_routes_better_and_both_beat_round_robin(
    closed_loop: TraceLoad,
) -> None:
    def mean_e2e(**router: object) -> float:
        return _report(minimax(**router), closed_loop)["mean_e2e_latency_ms"]

    heavy = mean_e2e(**{**KV_ROUTER, "prefill_load_scale": 32.0})
    light = mean_e2e(**{**KV_ROUTER, "prefill_load_scale": 4.0})
    assert heavy < light < mean_e2e()


@cache
def _family(policy: str, path: Path) -> tuple[float, float]:
    """Goodput per GPU in tokens/s, and mean GPUs, over the whole trace in an open loop."""
    report = _report(minimax(**KV_ROUTER, **scaled(policy)), trace(path), SLA)
    gpus = report["gpu_hours"] * 3_600_000 / report["duration_ms"]
    return report["goodput_output_throughput_tok_s"] / gpus, gpus


def _apart(one: float, other: float) -> float:
    return abs(one - other) / max(one, other)


@pytest.mark.parametrize("other", ["load_180_10", "hybrid_180_5"])
def test_predictive_scaling_lies_apart_from_reactive_scaling(other: str) -> None:
    path = conversation_trace()
    goodput, gpus = _family("throughput_180_5", path)
    other_goodput, other_gpus = _family(other, path)
    assert _apart(goodput, other_goodput) >= 0.2
    assert _apart(gpus, other_gpus) >= 0.2


def test_the_best_policy_doubles_a_static_deployment_s_goodput_per_gpu() -> None:
    path = conversation_trace()
    report = _report(minimax(**KV_ROUTER), trace(path), SLA)
    static = report["goodput_output_throughput_tok_s"] / 32
    assert max(_family(p, path)[0] for p in ("throughput_180_5", "load_180_10")) >= 2 * static
