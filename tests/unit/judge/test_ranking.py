"""Candidates in the order in which to prefer them, and in groups that noise cannot tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from schemas.goal import OptimizationGoal, OptimizationTarget
from spica_async.judge.ranking import is_confirmed, ordered, ranking
from spica_async.judge.scoring import Candidate, make_candidate

THROUGHPUT = OptimizationGoal(target=OptimizationTarget.THROUGHPUT)
LATENCY = OptimizationGoal(target=OptimizationTarget.E2E_LATENCY)
NOISY = (9.0, 10.0, 11.0, 10.0)


def candidate(
    name: str,
    values: Sequence[float],
    *,
    noisy: bool = True,
    gpus: int = 4,
    ttft: float = 100.0,
    goal: OptimizationGoal = THROUGHPUT,
    more: Mapping[str, float] | None = None,
) -> Candidate:
    key = "mean_e2e_latency_ms" if goal is LATENCY else "output_throughput_tok_s"
    sample: dict[str, Any] = {
        "used_gpus": gpus,
        "router_mode": "kv_router" if noisy else "round_robin",
    }
    return make_candidate(
        candidate_id=name,
        branch="agg",
        number=ord(name[0]),
        sample=sample,
        reports=[{key: value, "mean_ttft_ms": ttft, **(more or {})} for value in values],
        goal=goal,
        facts={},
    )


def names(groups: Sequence[Sequence[Candidate]]) -> list[str]:
    return ["".join(one.candidate_id for one in group) for group in groups]


def test_what_noise_cannot_tell_apart_is_one_group_with_fewer_gpus_first() -> None:
    listed = [
        candidate("a", NOISY, gpus=8),
        candidate("b", [value - 0.3 for value in NOISY], gpus=4, ttft=200.0),
        candidate("c", [value - 0.2 for value in NOISY], gpus=4, ttft=150.0),
        candidate("d", [value / 2 for value in NOISY], gpus=2),
    ]
    assert names(ordered(listed, THROUGHPUT)) == ["cba", "d"]


def test_a_group_holds_what_does_not_differ_from_its_best() -> None:
    # Each is like the one before it; the last is unlike the first.
    steps = [[value - 1.2 * step for value in NOISY] for step in range(3)]
    listed = [candidate(name, values) for name, values in zip("abc", steps, strict=True)]
    assert names(ordered(listed, THROUGHPUT)) == ["ab", "c"]


def test_exact_values_are_equal_or_they_are_not() -> None:
    listed = [
        candidate("a", [5.0], noisy=False, gpus=8),
        candidate("b", [5.0], noisy=False, gpus=2),
        candidate("c", [4.999], noisy=False, gpus=1),
    ]
    assert names(ordered(listed, THROUGHPUT, confirmed=2)) == ["ba", "c"]


def test_one_lucky_replay_shares_no_group_and_stands_behind_what_is_confirmed() -> None:
    listed = [
        candidate("a", [99.0]),
        candidate("b", NOISY),
        candidate("c", [7.0], noisy=False),
        candidate("d", [value / 2 for value in NOISY]),
        candidate("e", [value / 9 for value in NOISY]),
        candidate("f", [4.0]),
    ]
    assert names(ordered(listed, THROUGHPUT)) == ["a", "b", "c", "d", "f", "e"]
    # Behind the two that were to be confirmed, and before what turned out to be worse than they.
    assert names(ordered(listed, THROUGHPUT, confirmed=2)) == ["b", "c", "d", "a", "f", "e"]
    assert [is_confirmed(one) for one in listed] == [False, True, True, True, True, False]


def test_a_ranked_candidate_says_what_is_known_of_it() -> None:
    listed = [candidate("a", NOISY), candidate("b", [3.0])]
    first, second = ranking(listed, THROUGHPUT)
    assert (first.candidate_id, first.score, first.replicates, first.group) == ("a", 10.0, 4, 1)
    assert first.interval == first.intervals["throughput"] == pytest.approx((8.701, 11.299), 1e-3)
    assert first.metrics["output_throughput_tok_s"] == 10.0
    assert first.confirmed
    assert (second.interval, second.intervals, second.replicates) == (None, {}, 1)
    assert (second.group, second.confirmed) == (2, False)
    assert [one.candidate_id for one in ranking(listed, THROUGHPUT, most=1)] == ["a"]


def test_the_interval_of_a_latency_has_the_sign_of_its_score() -> None:
    (listed,) = ranking([candidate("a", NOISY, goal=LATENCY)], LATENCY)
    assert listed.score == -10.0
    assert listed.interval == pytest.approx((-11.299, -8.701), 1e-3)
    assert listed.intervals["e2e_latency"] == pytest.approx((8.701, 11.299), 1e-3)


def under(one: Candidate, **loads: float) -> Candidate:
    factors = {"low": 0.8, "high": 1.2}
    measured = {factors[name]: score for name, score in loads.items()}
    return Candidate(**{**{name: getattr(one, name) for name in one.__slots__}, "loads": measured})


def test_what_falls_behind_under_another_load_is_fragile() -> None:
    # The figures of a sweep over a bursty trace; the fourth fell from 58.0 to 19.8.
    listed = [
        under(candidate("a", [67.0], noisy=False), low=55.0, high=66.0),
        under(candidate("b", [58.0], noisy=False), low=19.8, high=60.0),
    ]
    first, second = ranking(listed, THROUGHPUT)
    assert (first.is_fragile, second.is_fragile) == (False, True)
    assert (second.loads, second.worst) == ({"0.8": 19.8, "1.2": 60.0}, 19.8)


def test_a_latency_that_rises_under_another_load_is_fragile() -> None:
    listed = [
        under(candidate("a", [10.0], noisy=False, goal=LATENCY), high=-12.0),
        under(candidate("b", [11.0], noisy=False, goal=LATENCY), high=-40.0),
    ]
    assert [one.is_fragile for one in ranking(listed, LATENCY)] == [False, True]


def test_a_robust_goal_ranks_by_the_worst_load_those_that_have_several() -> None:
    goal = THROUGHPUT.model_copy(update={"robust": True})
    listed = [
        under(candidate("a", [67.0], noisy=False), low=30.0),
        under(candidate("b", [58.0], noisy=False), low=50.0),
        candidate("c", [60.0], noisy=False),
    ]
    assert [one.candidate_id for one in ranking(listed, goal)] == ["b", "a", "c"]


def test_a_front_has_groups_as_well() -> None:
    goal = OptimizationGoal(target=OptimizationTarget.PARETO)
    user = "mean_output_token_throughput_per_user"
    gpu_time = {"gpu_hours": 4.0, "duration_ms": 3_600_000.0}
    listed = [
        candidate("a", NOISY, goal=goal, more=gpu_time | {user: 5.0}),
        candidate("b", [value - 0.1 for value in NOISY], goal=goal, more=gpu_time | {user: 5.0}),
        candidate("c", [value / 2 for value in NOISY], goal=goal, more=gpu_time | {user: 9.0}),
    ]
    assert names(ordered(listed, goal, confirmed=2)) == ["a", "c"]
    assert [(one.candidate_id, one.group) for one in ranking(listed, goal, most=1)] == [
        ("a", 1),
        ("c", 2),
    ]


def test_an_entry_says_whether_it_is_of_the_steady_part() -> None:
    listed = [
        candidate("a", [5.0], noisy=False, more={"whole.output_throughput_tok_s": 4.0}),
        candidate("b", [4.0], noisy=False),
    ]
    assert [one.window for one in ranking(listed, THROUGHPUT)] == ["steady", "whole"]
