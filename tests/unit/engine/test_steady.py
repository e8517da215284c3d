"""The steady part of a closed load, worked out from what was captured of its requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.goal import SLATarget
from schemas.messages import SyntheticLoad
from spica_async.engine.steady import Served, latencies, rates, steady_report


def captured(arrival: float, first: float, last: float, outputs: int = 11) -> dict[str, Any]:
    return {
        "arrival_time_ms": arrival,
        "first_token_ms": first,
        "last_token_ms": last,
        "ttst_ms": 5.0 if outputs > 1 else None,
        "input_length": 100,
        "output_length": outputs,
    }


def one_at_a_time(count: int) -> list[dict[str, Any]]:
    """Each takes a second, but for the first, which takes ten."""
    rows = [captured(0.0, 9_000.0, 10_000.0)]
    rows += [
        captured(1000.0 * at, 1000.0 * at + 500, 1000.0 * (at + 1)) for at in range(10, 9 + count)
    ]
    return rows


WHOLE_RUN = {"mean_ttft_ms": 3000.0, "output_throughput_tok_s": 5.0, "p99_itl_ms": 7.0}


def test_the_first_burst_and_the_last_requests_are_left_out() -> None:
    load = SyntheticLoad(isl=100, osl=11, requests=10, concurrency=1, window="steady")
    found = steady_report(WHOLE_RUN, one_at_a_time(10), load, None)
    assert found == {
        "mean_ttft_ms": 500.0,
        "whole.mean_ttft_ms": 3000.0,
        "output_throughput_tok_s": pytest.approx(11.0),
        "whole.output_throughput_tok_s": 5.0,
        "p99_itl_ms": 7.0,
    }


def test_where_nothing_lies_between_them_rates_are_of_the_whole_run() -> None:
    load = SyntheticLoad(isl=100, osl=11, requests=3, concurrency=3, window="steady")
    rows = [captured(0.0, 500.0, 1000.0), captured(0.0, 600.0, 1000.0), captured(0.0, 9.0, 1000.0)]
    found = steady_report(WHOLE_RUN, [*rows, captured(1000.0, 1400.0, 2000.0)], load, None)
    assert found["output_throughput_tok_s"] == 5.0
    assert "whole.output_throughput_tok_s" not in found
    assert (found["mean_ttft_ms"], found["whole.mean_ttft_ms"]) == (400.0, 3000.0)


def test_rates_are_of_the_tokens_that_come_within_and_of_what_ends_there() -> None:
    served = [Served.of(captured(0.0, 500.0, 1500.0)), Served.of(captured(0.0, 1100.0, 3000.0, 1))]
    found = rates(served, 1000.0, 2000.0, SLATarget(ttft_ms=600.0))
    assert found == pytest.approx(
        {
            "request_throughput_rps": 1.0,
            "input_throughput_tok_s": 100.0,
            "output_throughput_tok_s": 6.0,
            "total_throughput_tok_s": 106.0,
            "goodput_request_throughput_rps": 1.0,
            "goodput_output_throughput_tok_s": 5.0,
        }
    )


@pytest.mark.parametrize(
    ("sla", "good"),
    [
        ({"ttft_ms": 500.0}, True),
        ({"ttft_ms": 499.0}, False),
        ({"itl_ms": 100.0}, True),
        ({"itl_ms": 99.0}, False),
        ({"e2e_ms": 1500.0}, True),
        ({"ttft_ms": 500.0, "e2e_ms": 1499.0}, False),
    ],
)
def test_a_good_request_meets_each_level(sla: dict[str, float], *, good: bool) -> None:
    assert Served.of(captured(0.0, 500.0, 1500.0)).is_good(SLATarget(**sla)) is good


def test_answers_of_one_token_have_no_time_between_tokens() -> None:
    found = latencies([Served.of(captured(0.0, 5.0, 5.0, outputs=1))])
    assert found["mean_e2e_latency_ms"] == 5.0
    assert not [name for name in found if "tpot" in name or "itl" in name or "ttst" in name]


@given(st.lists(st.tuples(st.floats(0, 1e4), st.floats(1, 1e4), st.integers(1, 50)), min_size=1))
def test_windows_side_by_side_hold_all_tokens(requests: list[tuple[float, float, int]]) -> None:
    served = [
        Served.of(captured(0.0, first + 1, first + 1 + (length if outputs > 1 else 0), outputs))
        for first, length, outputs in requests
    ]
    end = max(one.last for one in served)
    parts = [(0.0, end / 3), (end / 3, end / 2), (end / 2, end)]
    found = sum(one.tokens(*part) for one in served for part in parts)
    assert found == pytest.approx(sum(one.outputs for one in served))
