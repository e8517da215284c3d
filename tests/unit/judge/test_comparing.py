"""Two deployments side by side."""

from __future__ import annotations

import pytest

from schemas.results import RankedCandidate
from spica_async.judge.comparing import MetricDifference, compare, paired
from spica_async.judge.noise import Mean


def entry(tp: int, *latencies: float, router: str = "kv_router", **knobs: int) -> RankedCandidate:
    mean = Mean.of(latencies, noisy=router == "kv_router")
    several = len(latencies) > 1 and mean.interval is not None
    return RankedCandidate(
        candidate_id="sweep-agg-1",
        score=1.0,
        objectives={},
        used_gpus=tp,
        config={"tp": tp, "router_mode": router, **knobs},
        metrics={"latency": mean.value, "of one": 1.0} | ({"of other": 2.0} if tp > 1 else {}),
        replicates=len(latencies),
        metric_intervals={"latency": mean.interval} if several and mean.interval else {},
    )


def latency(one: RankedCandidate, other: RankedCandidate) -> MetricDifference:
    return next(metric for metric in compare(one, other).metrics if metric.name == "latency")


def test_knobs_that_differ_are_listed_and_metrics_that_both_have() -> None:
    found = compare(entry(1, 5.0, seqs=2), entry(2, 5.0, tokens=3))
    assert found.knobs == {"tp": (1, 2), "seqs": (2, None), "tokens": (None, 3)}
    assert [metric.name for metric in found.metrics] == ["latency", "of one"]


@pytest.mark.parametrize(
    ("one", "other", "clears"),
    [
        ((10.0, 10.1, 9.9, 10.0), (12.0, 12.1, 11.9, 12.0), True),
        ((10.0, 13.0, 8.0, 9.0), (12.0, 9.0, 14.0, 13.0), False),
        ((10.0,), (12.0, 12.1, 11.9), None),
    ],
)
def test_a_difference_clears_the_noise_or_not_or_nobody_knows(
    one: tuple[float, ...], other: tuple[float, ...], *, clears: bool | None
) -> None:
    assert latency(entry(1, *one), entry(1, *other)).clears_noise is clears


def test_replays_that_do_not_differ_need_no_second() -> None:
    one, other = (entry(1, value, router="round_robin") for value in (10.0, 12.0))
    found = latency(one, other)
    assert found.clears_noise
    assert found.change == pytest.approx(0.2)
    assert latency(one, one).clears_noise is False


def test_a_change_from_nothing_is_no_number() -> None:
    zero = entry(1, 0.0, router="round_robin")
    assert latency(zero, entry(1, 1.0)).change is None


def test_requests_are_held_against_themselves() -> None:
    one = {"ttft_ms": [100.0, 200.0, 300.0, 400.0], "e2e_latency_ms": [1.0] * 4}
    other = {"ttft_ms": [90.0, 180.0, 310.0, 360.0], "e2e_latency_ms": [1.0] * 3}
    (found,) = paired(one, other)
    assert (found.name, found.requests, found.faster) == ("ttft_ms", 4, 0.75)
    assert found.change_ms == pytest.approx(-15.0)
    assert found.margin_ms == pytest.approx(33.12, abs=0.01)


def test_what_is_of_other_requests_is_not_paired() -> None:
    assert paired({"ttft_ms": [1.0]}, {"ttft_ms": [2.0]}) == []
    assert paired({}, {"ttft_ms": [2.0, 3.0]}) == []
