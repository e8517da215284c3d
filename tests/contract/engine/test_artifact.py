"""What a captured replay leaves behind agrees with its report, which capturing leaves as it is."""

from __future__ import annotations

import base64
import gzip
import statistics
from pathlib import Path

import pytest
from support.engine_samples import SLA, agg, disagg, request, scaled, synthetic, trace

from schemas.artifact import Artifact
from schemas.messages import EvaluationRequest
from spica_async.engine.evaluation import evaluate

BURSTY = Path(__file__).parents[3] / "examples" / "traces" / "bursty.jsonl"


def captured(asked: EvaluationRequest, interval_ms: float) -> tuple[dict[str, float], Artifact]:
    """The report and the artifact of a captured replay."""
    measured = evaluate(asked.model_copy(update={"capture_interval_ms": interval_ms}))
    assert measured.report is not None
    assert measured.artifact is not None
    body = gzip.decompress(base64.b64decode(measured.artifact))
    return measured.report, Artifact.model_validate_json(body)


def agree(report: dict[str, float], artifact: Artifact) -> None:
    for name, latency in artifact.latencies.items():
        stem = name.removesuffix("_ms")
        assert latency.mean == pytest.approx(report[f"mean_{stem}_ms"], rel=1e-6)
        assert statistics.fmean(latency.points) == pytest.approx(latency.mean, rel=0.05)
        assert statistics.median(latency.points) == pytest.approx(
            report[f"median_{stem}_ms"], rel=0.02
        )
        assert latency.points[0] == pytest.approx(report[f"min_{stem}_ms"], rel=1e-5)
        assert latency.points[-1] == pytest.approx(report[f"max_{stem}_ms"], rel=1e-5)


def test_a_static_deployment_keeps_its_report() -> None:
    asked = request(disagg(), synthetic(requests=60), SLA)
    plain = evaluate(asked)
    report, artifact = captured(asked, 50.0)
    assert plain.artifact is None
    # The engine sums up what lies between two samples, in another order.
    assert report == pytest.approx(plain.report, rel=1e-12)
    agree(report, artifact)
    assert set(artifact.series["gpus"]) == {8.0}
    assert set(artifact.series["prefill.replicas"]) == {2.0}
    assert {len(column) for column in artifact.series.values()} == {len(artifact.series["gpus"])}


def test_a_planner_shows_what_it_scales() -> None:
    sample = agg(**scaled("hybrid_180_5"), gpu_budget=16)
    asked = request(sample, trace(BURSTY), SLA)
    report, artifact = captured(asked, 2000.0)
    agree(report, artifact)
    gpus = [value or 0.0 for value in artifact.series["gpus"]]
    average = report["gpu_hours"] / (report["duration_ms"] / 3_600_000)
    assert statistics.fmean(gpus) == pytest.approx(average, rel=0.02)
    assert artifact.scaling_count == len(artifact.scaling) > 10
    assert max(event.to_count for event in artifact.scaling) * 2 == max(gpus)
