"""The steady part of a closed load, worked out from what was captured of its requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.goal import SLATarget
from schemas.messages import SyntheticLoad
from spica_async.engine.steady import (
    Served,
    goodput,
    latencies,
    rates,
    settled_requests,
    steady_report,
)


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
    found = rates(served, 1000.0, 2000.0)
    assert found == pytest.approx(
        {
            "request_throughput_rps": 1.0,
            "input_throughput_tok_s": 100.0,
            "output_throughput_tok_s": 6.0,
            "total_throughput_tok_s": 106.0,
        }
    )


def test_goodput_is_the_part_of_the_rates_that_the_settled_requests_earn() -> None:
    settled = [Served.of(captured(0.0, first, 1500.0)) for first in (400.0, 500.0, 600.0, 700.0)]
    whole = {"request_throughput_rps": 8.0, "output_throughput_tok_s": 80.0}
    found = goodput(whole, settled=settled, sla=SLATarget(ttft_ms=600.0))
    assert found == {
        "goodput_request_throughput_rps": 6.0,
        "goodput_output_throughput_tok_s": 60.0,
    }


@pytest.mark.parametrize(
    ("waves", "settled", "under_load"),
    [(3, (1, 3), (1, 2)), (5, (3, 5), (3, 4)), (10, (5, 10), (5, 9)), (20, (10, 20), (10, 19))],
)
def test_whole_waves_are_left_out(
    waves: int, settled: tuple[int, int], under_load: tuple[int, int]
) -> None:
    served = [Served.of(captured(wave, wave + 1, wave + 2)) for wave in range(waves)]
    each_four_times = [one for one in served for _ in range(4)]
    found = settled_requests(each_four_times, 4)
    assert [(part[0].arrival, part[-1].arrival + 1) for part in found] == [settled, under_load]


def test_what_is_over_counts_as_part_of_the_burst() -> None:
    served = [Served.of(captured(at, at + 1, at + 2)) for at in range(22)]
    settled, under_load = settled_requests(served, 4)
    assert (len(settled), len(under_load)) == (8, 4)


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
