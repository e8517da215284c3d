"""Loads that take longer to arrive than anybody can mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.search_space import CompositeEntry
from schemas.workload import Workload
from spica_async.errors import InputError
from spica_async.plan.span import check_span
from spica_async.traces.check import TraceFacts

DAY = 24 * 3600
LENGTHS: dict[str, Any] = {"isl": 1000, "osl": 100}
EVERY_SECOND: CompositeEntry = {
    "enable_throughput_scaling": True,
    "enable_load_scaling": False,
    "throughput_adjustment_interval_seconds": 180,
    "load_adjustment_interval_seconds": 1,
}


def facts(seconds: float) -> TraceFacts:
    return TraceFacts(
        path="trace.jsonl",  # type: ignore[arg-type]  # nothing is read there
        sha256="0" * 64,
        size_bytes=1,
        requests=2,
        input_tokens=2,
        output_tokens=2,
        longest_request=2,
        first_timestamp_ms=5000,
        last_timestamp_ms=5000 + 1000 * seconds,
        is_sorted=True,
    )


def traced(**fields: Any) -> Workload:
    return Workload(trace_path="/trace.jsonl", **fields)


def test_a_trace_of_days_is_fine() -> None:
    check_span(traced(), ["load_180_5", "disabled"], facts(57 * DAY))
    check_span(traced(), ["disabled"], facts(366 * DAY))
    check_span(traced(arrival_speedup_ratio=10.0), ["load_180_5"], facts(366 * DAY))
    check_span(traced(arrival_speedup_ratio=1e300), ["load_180_5"], facts(366 * DAY))
    check_span(traced(replay_concurrency=1), ["load_180_5"], facts(366 * DAY))


@pytest.mark.parametrize("ratio", [1e-9, 5e-324])
def test_a_trace_is_not_to_be_slowed_down_without_end(ratio: float) -> None:
    with pytest.raises(
        InputError, match=r"workload\.arrival_speedup_ratio: the load takes .* days"
    ):
        check_span(traced(arrival_speedup_ratio=ratio), ["disabled"], facts(3600))


def test_a_planner_looks_a_million_times_at_most() -> None:
    with pytest.raises(
        InputError,
        match=r"workload\.trace_path: the load takes 58\.0 days .* every 5 s looks 1,002,240 times",
    ):
        check_span(traced(), ["disabled", "load_180_10", "load_180_5"], facts(58 * DAY))
    with pytest.raises(InputError, match=r"workload\.trace_path: .* every 1 s"):
        check_span(traced(), [EVERY_SECOND], facts(12 * DAY))


def test_a_synthetic_load_that_lasts_too_long() -> None:
    # A request every 20 minutes, for 1,141 days.
    slow: dict[str, Any] = {"request_rate": 0.001, "num_request_ratio": 1e8}
    with pytest.raises(InputError, match=r"workload\.num_request_ratio: .* 1,157 days"):
        check_span(Workload(**LENGTHS, **slow), ["disabled"], None)
    # A single request comes at once.
    check_span(Workload(**LENGTHS, request_rate=1e-9, num_request_ratio=1.0), ["load_180_5"], None)
    pause: dict[str, Any] = {"turns_per_session": 3, "inter_turn_delay_ms": 1e12, "concurrency": 4}
    with pytest.raises(InputError, match=r"workload\.inter_turn_delay_ms: .* 23,148 days"):
        check_span(Workload(**LENGTHS, num_request_ratio=1.0, **pause), ["disabled"], None)


def test_delays_count_as_often_as_sessions_follow_each_other() -> None:
    pause: dict[str, Any] = {"turns_per_session": 2, "inter_turn_delay_ms": 1000.0 * DAY}
    twice = Workload(**LENGTHS, num_request_ratio=2.0, concurrency=4, **pause)
    check_span(twice, ["load_180_5"], None)
    often = Workload(**LENGTHS, num_request_ratio=400.0, concurrency=4, **pause)
    with pytest.raises(InputError, match=r"workload\.inter_turn_delay_ms: .* 400 days"):
        check_span(often, ["disabled"], None)
    sessions = replace(facts(DAY), delays_ms=4000.0 * 400 * DAY)
    check_span(traced(), ["load_180_5"], sessions)
    check_span(traced(replay_concurrency=40), ["load_180_5"], sessions)
    with pytest.raises(InputError, match=r"workload\.trace_path: .* 400 days"):
        check_span(traced(replay_concurrency=4), ["disabled"], sessions)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"concurrency": 64, "num_request_ratio": 1e9}, "num_request_ratio"),
        ({"concurrency": 64, "num_request_ratio": 1e308}, "num_request_ratio"),
        ({"request_rate": 1e308, "num_request_ratio": 1e308}, "num_request_ratio"),
        ({"concurrency": 10**400, "num_request_ratio": 1.0}, "num_request_ratio"),
        ({"kv_load_ratio": 0.5, "num_request_ratio": 1e9}, "num_request_ratio"),
        (
            {"concurrency": 1, "num_request_ratio": 1.0, "turns_per_session": 10**400},
            "turns_per_session",
        ),
    ],
)
def test_a_load_of_more_requests_than_a_replay_holds(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InputError, match=rf"workload\.{named}: the load has more than 100,000,000"):
        check_span(Workload(**LENGTHS, **fields), ["disabled"], None)


def test_a_span_of_hundreds_of_digits_is_named_in_a_line_that_can_be_read() -> None:
    workload = Workload(
        **LENGTHS,
        concurrency=1,
        num_request_ratio=1,
        turns_per_session=2,
        inter_turn_delay_ms=1e300,
    )
    with pytest.raises(InputError, match="inter_turn_delay_ms: the load takes 1e") as refusal:
        check_span(workload, ["disabled"], None)
    assert len(str(refusal.value)) < 100
