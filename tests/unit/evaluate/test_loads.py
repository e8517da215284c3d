"""The load that a worker replays, of every shape of workload."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.config import SmartSearchConfig
from schemas.messages import SyntheticLoad, TraceLoad
from spica_async.evaluate.loads import load_of, request_count, trace_load
from spica_async.traces.check import TraceFacts

LENGTHS = {"isl": 1000, "osl": 100, "num_request_ratio": 2.0}
FACTS = TraceFacts(
    path=Path("/traces/a.jsonl"),
    sha256="0" * 64,
    size_bytes=1000,
    requests=7,
    input_tokens=12_000,
    output_tokens=345,
    longest_request=4000,
    first_timestamp_ms=0.0,
    last_timestamp_ms=1.0,
    is_sorted=True,
)


@pytest.mark.parametrize(
    ("ratio", "load", "expected"),
    [
        (2.0, 8, 16),
        (0.5, 1, 1),  # rounds to 0, and one request is the least
        (0.01, 3, 1),
        (1.5, 1, 2),
        (2.5, 1, 2),  # halves go to the even
        (1.0, 0.3, 1),
        (10.0, 0.26, 3),
        (1.4, 1, 1),
        (1.6, 1, 2),
    ],
)
def test_requests_are_a_multiple_of_the_load_and_at_least_one(
    ratio: float, load: float, expected: int
) -> None:
    assert request_count(ratio, load) == expected


@pytest.mark.parametrize(
    ("workload", "sample", "expected"),
    [
        (
            {"concurrency": 4},
            {},
            SyntheticLoad(isl=1000, osl=100, requests=80, concurrency=4, window="steady"),
        ),
        (
            {"concurrency": 4, "window": "whole"},
            {},
            SyntheticLoad(isl=1000, osl=100, requests=8, concurrency=4),
        ),
        (
            {"concurrency": 100, "num_request_ratio": 5.0},
            {},
            SyntheticLoad(isl=1000, osl=100, requests=1280, concurrency=100, window="steady"),
        ),
        (
            {"concurrency": 1000, "num_request_ratio": 5.0},
            {},
            SyntheticLoad(isl=1000, osl=100, requests=5000, concurrency=1000, window="steady"),
        ),
        (
            {"concurrency": 1000},
            {},
            SyntheticLoad(isl=1000, osl=100, requests=2000, concurrency=1000),
        ),
        (
            {"request_rate": 2.6},
            {},
            SyntheticLoad(isl=1000, osl=100, requests=5, request_rate=2.6),
        ),
        (
            {"kv_load_ratio": 0.5},
            {"concurrency": 14},
            SyntheticLoad(isl=1000, osl=100, requests=280, concurrency=14, window="steady"),
        ),
        (
            {
                "concurrency": 1,
                "shared_prefix_ratio": 0.5,
                "num_prefix_groups": 3,
                "turns_per_session": 2,
                "inter_turn_delay_ms": 7.0,
            },
            {},
            SyntheticLoad(
                isl=1000,
                osl=100,
                requests=2,
                concurrency=1,
                shared_prefix_ratio=0.5,
                num_prefix_groups=3,
                turns_per_session=2,
                inter_turn_delay_ms=7.0,
            ),
        ),
    ],
    ids=str,
)
def test_a_synthetic_load_has_the_workloads_lengths_and_the_samples_concurrency(
    make_config: Callable[..., SmartSearchConfig],
    workload: dict[str, Any],
    sample: dict[str, Any],
    expected: SyntheticLoad,
) -> None:
    load = load_of(make_config(workload={**LENGTHS, **workload}), None, sample)
    assert load == expected
    assert load.total_tokens == load.requests * load.turns_per_session * 1100


def test_a_pareto_workload_without_load_takes_the_samples_concurrency(
    make_config: Callable[..., SmartSearchConfig],
) -> None:
    config = make_config(workload=LENGTHS, goal={"target": "pareto"})
    load = load_of(config, None, {"concurrency": 3})
    assert isinstance(load, SyntheticLoad)
    assert (load.concurrency, load.requests, load.request_rate) == (3, 60, None)


def test_a_trace_is_replayed_as_the_workload_says(
    make_config: Callable[..., SmartSearchConfig],
) -> None:
    closed = make_config(workload={"trace_path": "/traces/a.jsonl", "replay_concurrency": 32})
    faster = make_config(workload={"trace_path": "/traces/a.jsonl", "arrival_speedup_ratio": 2.0})
    load = trace_load(closed.workload, FACTS)
    assert load == TraceLoad(
        path="/traces/a.jsonl",
        sha256="0" * 64,
        size_bytes=1000,
        requests=7,
        total_tokens=12_345,
        concurrency=32,
    )
    spedup = trace_load(faster.workload, FACTS)
    assert (spedup.arrival_speedup_ratio, spedup.concurrency) == (2.0, None)
    assert load_of(closed, load, {"concurrency": 3}) is load
