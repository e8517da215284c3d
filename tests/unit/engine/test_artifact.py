"""What is kept of a replay: few points that still say what all of it did, in few bytes."""

from __future__ import annotations

import base64
import gzip
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.artifact import Artifact, Latency, ScalingEvent
from schemas.messages import MAX_ARTIFACT_BYTES, Measurement
from spica_async.engine.artifact import (
    POINTS,
    SAMPLES,
    make_artifact,
    packed,
    quantiles,
    thinned,
)

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=500)


def request(ttft: float, tpot: float | None = 10.0, arrival: float = 0.0) -> dict[str, Any]:
    return {
        "ttft_ms": ttft,
        "itl_ms": tpot,
        "e2e_latency_ms": ttft + 100.0,
        "arrival_time_ms": arrival,
        "uuid": "0",
    }


def sample(at_s: float, *, workers: int = 2, draining: int = 0) -> dict[str, Any]:
    rank = {"running_requests": 3, "waiting_requests": 1, "active_cache_usage": 0.5}
    nothing = {"cache_hit_tokens": 0, "cache_total_tokens": 0}
    state: dict[str, Any] = {"sampled_at_ms": at_s * 1000}
    state["traffic"] = {"duration_s": 2.0, "arriving_requests": 4, "completed_requests": 1}
    for role, count in (("prefill", 0), ("decode", workers)):
        state |= {
            f"active_{role}_ids": list(range(count)),
            f"starting_{role}_ids": [],
            f"draining_{role}_ids": list(range(draining if count else 0)),
            f"{role}_scheduler_metrics": [rank] * count,
            f"{role}_interval_metrics": nothing,
            f"router_pending_{role}_requests": 0,
        }
    return state


def unpacked(text: str) -> Artifact:
    return Artifact.model_validate_json(gzip.decompress(base64.b64decode(text)))


def test_single_requests_are_in_the_order_of_arrival_and_go_first() -> None:
    made = make_artifact([request(3.0, arrival=9.0), request(4.0, arrival=1.0)], [], [], {})
    assert made.requests == {"ttft_ms": [4.0, 3.0], "e2e_latency_ms": [104.0, 103.0]}
    without = thinned(made)
    assert without.requests == {}
    assert without.latencies == made.latencies


@given(VALUES, st.integers(2, 200))
def test_quantiles_go_from_the_least_to_the_greatest(values: list[float], most: int) -> None:
    ascending = sorted(values)
    points = quantiles(ascending, most)
    assert points == sorted(points)
    assert (points[0], points[-1]) == (ascending[0], ascending[-1])
    assert len(points) == min(most, len(values))


@given(st.lists(st.floats(0, 1e6), min_size=4, max_size=500))
def test_quantiles_are_those_of_the_standard_library(values: list[float]) -> None:
    points = quantiles(sorted(values), 3)
    expected = statistics.quantiles(values, n=2, method="inclusive")
    assert points[1] == pytest.approx(expected[0], abs=1e-6)


def test_an_aggregated_deployment_is_one_pool() -> None:
    made = make_artifact(
        [request(float(n)) for n in range(1001)],
        [sample(float(n), workers=3, draining=1) for n in range(3)],
        [{"at_s": 1.0, "component": "agg", "from_count": 2, "to_count": 3, "reason": "scale_up"}],
        {"prefill": 0.0, "decode": 4.0},
    )
    assert made.latencies["ttft_ms"].count == 1001
    assert made.latencies["ttft_ms"].mean == 500.0
    assert len(made.latencies["ttft_ms"].points) == POINTS
    assert made.series == {
        "time_s": [0, 1, 2],
        "gpus": [16] * 3,
        "arriving_rps": [2] * 3,
        "completed_rps": [0.5] * 3,
        "agg.replicas": [3] * 3,
        "agg.starting": [0] * 3,
        "agg.draining": [1] * 3,
        "agg.running": [9] * 3,
        "agg.waiting": [3] * 3,
        "agg.kv_usage": [0.5] * 3,
        "agg.hit_rate": [None] * 3,
    }
    assert made.scaling[0].to_count == 3
    assert made.scaling_count == 1


def test_a_request_of_one_token_has_no_tpot() -> None:
    made = make_artifact([request(1.0, None)], [], [], {"prefill": 0.0, "decode": 1.0})
    assert set(made.latencies) == {"ttft_ms", "e2e_latency_ms"}
    assert made.series == {}


def test_series_are_no_longer_than_a_chart_shows() -> None:
    many = [sample(float(n), workers=1 + n % 2) for n in range(1100)]
    series = make_artifact([], many, [], {"prefill": 0.0, "decode": 1.0}).series
    assert all(len(column) == 275 <= SAMPLES for column in series.values())
    assert series["time_s"][0] == 3.0
    assert set(series["gpus"]) == {1.5}


def noise(points: int, events: int) -> Artifact:
    chance = random.Random(1)
    return Artifact(
        latencies={"ttft_ms": Latency(count=9, mean=1, points=[chance.random() for _ in range(9)])},
        series={"gpus": [chance.random() for _ in range(points)]},
        scaling=[
            ScalingEvent(at_s=chance.random(), component="agg", from_count=n, to_count=n + 1)
            for n in range(events)
        ],
        scaling_count=events,
    )


def test_what_is_small_is_kept_as_it_is() -> None:
    text = packed(noise(500, 20))
    assert text is not None
    assert unpacked(text) == noise(500, 20)
    assert packed(noise(500, 20)) == text


@pytest.mark.parametrize(("points", "events"), [(100_000, 0), (10, 30_000), (50_000, 20_000)])
def test_what_is_large_is_thinned_until_it_fits(points: int, events: int) -> None:
    text = packed(noise(points, events))
    assert text is not None
    assert len(base64.b64decode(text)) <= MAX_ARTIFACT_BYTES
    assert Measurement(outcome="feasible", artifact=text).artifact == text
    kept = unpacked(text)
    assert kept.scaling_count == events
    assert len(kept.series["gpus"]) < points
    assert statistics.fmean(kept.series["gpus"]) == pytest.approx(0.5, abs=0.3)  # type: ignore[arg-type]  # there is no None in it


def test_what_cannot_fit_is_left_out() -> None:
    assert packed(noise(1000, 10), most_bytes=20) is None


@given(st.integers(1, 40), st.integers(0, 40))
def test_thinning_ends(points: int, events: int) -> None:
    artifact = noise(points, events)
    for _ in range(8):
        artifact = thinned(artifact)
    assert thinned(artifact) == artifact
    assert len(artifact.series["gpus"]) == 1
