"""How much better than the baseline candidates are."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.goal import OptimizationGoal, OptimizationTarget
from spica_async.judge.gain import gain
from spica_async.judge.noise import Mean
from spica_async.judge.ranking import entry_of, ranking
from spica_async.judge.scoring import Candidate, make_candidate

LATENCY = OptimizationGoal(target=OptimizationTarget.E2E_LATENCY)
FRONT = OptimizationGoal(
    target=OptimizationTarget.PARETO,
    pareto_objectives=[OptimizationTarget.THROUGHPUT, OptimizationTarget.E2E_LATENCY],
)
POSITIVE = st.floats(0.1, 1e6)


def exact(value: float) -> Mean:
    return Mean.of([value], noisy=False)


def candidate(name: str, tokens: float, latency: float, goal: OptimizationGoal) -> Candidate:
    return make_candidate(
        candidate_id=name,
        branch="agg",
        number=0,
        sample={"used_gpus": 1, "router_mode": "round_robin"},
        reports=[{"output_throughput_tok_s": tokens, "mean_e2e_latency_ms": latency}],
        goal=goal,
        facts={},
    )


@given(POSITIVE, POSITIVE)
def test_better_is_above_0_whatever_the_metric(value: float, baseline: float) -> None:
    more, less = (gain(exact(value), exact(baseline), maximize=is_so) for is_so in (True, False))
    assert more.percent == pytest.approx(100 * (value / baseline - 1))
    assert less.percent == pytest.approx(-more.percent)
    assert more.margin == less.margin == 0


@pytest.mark.parametrize("once", ["candidate", "baseline"])
def test_what_was_measured_once_has_no_margin(once: str) -> None:
    single, several = Mean.of([3.0], noisy=True), Mean.of([2.0, 2.1], noisy=True)
    pair = (single, several) if once == "candidate" else (several, single)
    assert gain(*pair, maximize=True).margin is None


def test_the_margin_is_that_of_both() -> None:
    noisy = Mean.of([9.0, 10.0, 11.0, 10.0], noisy=True)
    assert noisy.interval is not None
    half = noisy.interval[1] - noisy.value
    # An exact baseline leaves the candidate's own, and the other way round to the first order.
    assert gain(noisy, exact(5.0), maximize=True).margin == pytest.approx(100 * half / 5)
    assert gain(exact(5.0), noisy, maximize=True).margin == pytest.approx(100 * 0.5 * half / 10)
    assert (gain(noisy, noisy, maximize=True).margin or 0) > 100 * half / 10


def test_the_margin_holds_the_true_gain_as_often_as_it_says() -> None:
    pace = random.Random(1)
    draws = 2000
    held = 0
    for _ in range(draws):
        ours = Mean.of([pace.gauss(120, 6) for _ in range(4)], noisy=True)
        theirs = Mean.of([pace.gauss(100, 10) for _ in range(6)], noisy=True)
        found = gain(ours, theirs, maximize=True)
        held += abs(found.percent - 20) <= (found.margin or 0)
    assert 0.93 <= held / draws <= 0.97


def test_entries_have_the_gain_of_their_score_and_of_each_objective() -> None:
    baseline = candidate("base", 10.0, 100.0, FRONT)
    (entry,) = ranking([candidate("a", 15.0, 80.0, FRONT)], FRONT, baseline=baseline)
    assert {name: one.percent for name, one in entry.gains.items()} == {
        "throughput": pytest.approx(50),
        "e2e_latency": pytest.approx(20),
    }
    assert entry.gain == entry.gains["throughput"]
    assert entry_of(baseline, FRONT).gain is None
    (alone,) = ranking([candidate("a", 15.0, 80.0, LATENCY)], LATENCY)
    assert (alone.gain, alone.gains) == (None, {})


def test_nothing_is_gained_over_a_baseline_at_0() -> None:
    baseline = candidate("base", 0.0, 100.0, FRONT)
    (entry,) = ranking([candidate("a", 15.0, 80.0, FRONT)], FRONT, baseline=baseline)
    assert entry.gain is None
    assert set(entry.gains) == {"e2e_latency"}
