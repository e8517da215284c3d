"""The accuracy of a cell, and what a sweep says of it."""

from __future__ import annotations

import pytest
from support.silicon import cell, points_at

from schemas.messages import Measurement, SyntheticLoad
from spica_async.accuracy.cells import accuracy_of, cell_accuracy, throughput
from spica_async.accuracy.points import Replayable
from spica_async.accuracy.replays import Comparison, comparison, replay_request
from spica_async.engine.config import engine_config

LOAD = Replayable(isl=1024, osl=101, tp=2, attention_dp=1, moe_tp=1, moe_ep=1, concurrency=8)
POINTS = points_at(8, 16, 32)


def test_throughput_follows_from_the_time_of_a_request() -> None:
    # Eight requests at a time, each of 101 tokens in 2 s.
    assert throughput(LOAD, ttft_ms=1000, tpot_ms=10) == pytest.approx(8 * 101 / 2)


def test_a_cell_has_the_errors_of_its_points() -> None:
    comparisons = [
        Comparison(point, point.ttft_ms * 0.5, point.tpot_ms * (1.1 + 0.1 * number))
        for number, point in enumerate(POINTS)
    ]
    found = cell_accuracy(comparisons, available=90, failed=2, simulated_version="0.24.0")
    assert (found.model, found.hardware_sku, found.backend) == POINTS[0].cell
    assert (found.points, found.available, found.failed) == (3, 90, 2)
    assert found.tpot.mean == pytest.approx(0.2)
    assert found.ttft.signed_median == pytest.approx(-0.5)
    assert found.throughput.signed_median < 0
    # All were measured alike, so that there is no order to keep.
    assert found.tpot_rank_correlation is None
    assert found.measured_as == ["Qwen/Qwen3-32B"]
    assert found.measured_versions == ["0.12.0"]
    assert found.simulated_version == "0.24.0"


def test_a_version_that_is_not_noted_is_none() -> None:
    points = points_at(8, backend_version="")
    comparisons = [Comparison(point, 1, 1) for point in points]
    found = cell_accuracy(comparisons, available=1, failed=0, simulated_version="0.24.0")
    assert found.measured_versions == []


def test_a_point_is_replayed_as_a_candidate_under_its_load() -> None:
    request = replay_request(POINTS[1])
    assert request.load == SyntheticLoad(isl=1024, osl=128, requests=160, concurrency=16)
    config = engine_config(request.sample, "agg")
    assert config["engine"]["timing_model"]["config"]["tp"] == 2
    assert config["engine"]["max_num_seqs"] == 16
    assert len({replay_request(point).evaluation_id for point in POINTS}) == len(POINTS)


def test_a_replay_that_failed_says_why() -> None:
    failed = comparison(POINTS[0], Measurement.failed("build_error", "no such shape"))
    assert failed == "failed: build_error: no such shape"
    report = {"mean_ttft_ms": 150.0, "mean_tpot_ms": 17.0}
    told = comparison(POINTS[0], Measurement(outcome="feasible", report=report))
    assert told == Comparison(POINTS[0], 150.0, 17.0)


def test_each_backend_of_a_sweep_has_its_cell_the_nearest_or_none() -> None:
    known = [cell(), cell(backend="sglang", points=30), cell(sku="gb200", backend="trtllm")]
    own, nearest = accuracy_of(known, "Qwen/Qwen3-32B", "h100_sxm", ["vllm", "trtllm"])
    assert (own.backend, own.cell, own.differs) == ("vllm", known[0], None)
    # Of two that are equally near, the one of more points.
    assert (nearest.backend, nearest.cell) == ("trtllm", known[1])
    assert nearest.differs == "measured on sglang, not trtllm"

    [never] = accuracy_of(known, "Qwen/Qwen3-8B", "h100_sxm", ["vllm"])
    assert (never.cell, never.differs) == (None, None)
