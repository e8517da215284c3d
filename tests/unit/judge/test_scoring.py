"""From a report to a score, a ranking and a front."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.goal import OptimizationGoal, OptimizationTarget, SLATarget
from spica_async.judge.noise import Mean
from spica_async.judge.scoring import (
    Candidate,
    average_gpus,
    is_feasible,
    make_candidate,
    objective_value,
    pareto_front,
    rank,
    report_problem,
    score_report,
)

HOUR_MS = 3_600_000.0
# Half an hour on 4 GPUs.
REPORT = {
    "output_throughput_tok_s": 1000.0,
    "mean_output_token_throughput_per_user": 50.0,
    "mean_e2e_latency_ms": 2000.0,
    "goodput_output_throughput_tok_s": 800.0,
    "gpu_hours": 2.0,
    "duration_ms": HOUR_MS / 2,
}
VALUES = {
    "throughput": 1000.0,
    "throughput_per_gpu": 250.0,
    "throughput_per_user": 50.0,
    "e2e_latency": 2000.0,
    "goodput": 800.0,
    "goodput_per_gpu": 200.0,
}
KEYS = {
    "throughput": {"output_throughput_tok_s"},
    "throughput_per_gpu": {"output_throughput_tok_s", "gpu_hours", "duration_ms"},
    "throughput_per_user": {"mean_output_token_throughput_per_user"},
    "e2e_latency": {"mean_e2e_latency_ms"},
    "goodput": {"goodput_output_throughput_tok_s"},
    "goodput_per_gpu": {"goodput_output_throughput_tok_s", "gpu_hours", "duration_ms"},
}
SCALARS = [target for target in OptimizationTarget if target is not OptimizationTarget.PARETO]
EITHER_WAY = (OptimizationTarget.THROUGHPUT, OptimizationTarget.E2E_LATENCY)
SLA = SLATarget(e2e_ms=1.0)


@pytest.mark.parametrize("target", SCALARS)
def test_each_target_reads_its_key_and_signs_its_score(target: OptimizationTarget) -> None:
    assert objective_value(REPORT, target) == VALUES[target]
    sign = -1 if target == "e2e_latency" else 1
    goal = OptimizationGoal(target=target, sla=SLA)
    assert score_report(REPORT, goal) == sign * VALUES[target]
    others = {key: value for key, value in REPORT.items() if key in KEYS[target]}
    assert objective_value(others, target) == VALUES[target]


@pytest.mark.parametrize("target", SCALARS)
def test_a_missing_key_reads_as_the_worst_there_is(target: OptimizationTarget) -> None:
    worst = math.inf if target == "e2e_latency" else 0.0
    for key in KEYS[target]:
        report = {name: value for name, value in REPORT.items() if name != key}
        assert objective_value(report, target) == worst
    goal = OptimizationGoal(target=target, sla=SLA)
    assert score_report({}, goal) == (-math.inf if target == "e2e_latency" else 0.0)


def test_pareto_is_no_objective_and_scores_by_its_first_raw() -> None:
    with pytest.raises(ValueError, match="several objectives"):
        objective_value(REPORT, OptimizationTarget.PARETO)
    goal = OptimizationGoal(
        target=OptimizationTarget.PARETO,
        pareto_objectives=[OptimizationTarget.E2E_LATENCY, OptimizationTarget.THROUGHPUT],
    )
    assert score_report(REPORT, goal) == 2000.0


@pytest.mark.parametrize(
    ("gpu_hours", "duration_ms", "expected"),
    [
        (2.0, HOUR_MS / 2, 4.0),
        (8.0, HOUR_MS, 8.0),
        (0.0, HOUR_MS, 0.0),
        (-1.0, HOUR_MS, 0.0),
        (2.0, 0.0, 0.0),
        (2.0, -HOUR_MS, 0.0),
        (-2.0, -HOUR_MS, 0.0),
        (2.0, 5e-324, 0.0),  # too short for its hours to be more than 0
        (1e-9, HOUR_MS, 1e-9),
    ],
)
def test_average_gpus_are_gpu_hours_over_hours(
    gpu_hours: float, duration_ms: float, expected: float
) -> None:
    report = {"gpu_hours": gpu_hours, "duration_ms": duration_ms}
    assert average_gpus(report) == expected
    rate = {"output_throughput_tok_s": 8.0, **report}
    per_gpu = objective_value(rate, OptimizationTarget.THROUGHPUT_PER_GPU)
    assert per_gpu == (8.0 / expected if expected else 0.0)


@pytest.mark.parametrize("missing", ["gpu_hours", "duration_ms"])
def test_without_hours_there_are_no_average_gpus(missing: str) -> None:
    assert average_gpus({key: value for key, value in REPORT.items() if key != missing}) == 0.0


@pytest.mark.parametrize("target", SCALARS)
def test_a_report_must_have_what_its_objective_reads(target: OptimizationTarget) -> None:
    assert report_problem(REPORT, [target]) is None
    for key in REPORT:
        report = {name: value for name, value in REPORT.items() if name != key}
        expected = ("report_incomplete", f"missing: {key}") if key in KEYS[target] else None
        assert report_problem(report, [target]) == expected
    assert report_problem({}, [target]) == (
        "report_incomplete",
        f"missing: {', '.join(sorted(KEYS[target]))}",
    )


def test_every_objective_of_several_must_be_there() -> None:
    report = {"output_throughput_tok_s": 1.0}
    assert report_problem(report, EITHER_WAY) == (
        "report_incomplete",
        "missing: mean_e2e_latency_ms",
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_no_number_of_a_report_may_be_infinite_or_none(bad: float) -> None:
    assert report_problem(
        REPORT | {"other": bad, "another": bad}, [OptimizationTarget.THROUGHPUT]
    ) == (
        "report_not_finite",
        "not finite: another, other",
    )


def test_a_real_zero_is_a_number() -> None:
    zeros = dict.fromkeys(REPORT, 0.0)
    assert report_problem(zeros, SCALARS) is None
    assert [objective_value(zeros, target) for target in SCALARS] == [0.0] * len(SCALARS)


def test_an_objective_beyond_all_numbers_is_not_scored() -> None:
    report = REPORT | {"output_throughput_tok_s": 1e308, "gpu_hours": 1e-308}
    assert report_problem(report, [OptimizationTarget.THROUGHPUT]) is None
    assert report_problem(report, [OptimizationTarget.THROUGHPUT_PER_GPU]) == (
        "report_not_finite",
        "no finite number: throughput_per_gpu",
    )


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from([*REPORT, "other"]), st.floats()),
    st.lists(st.sampled_from(SCALARS), min_size=1, unique=True),
)
def test_what_is_scored_is_finite(
    report: dict[str, float], objectives: list[OptimizationTarget]
) -> None:
    if report_problem(report, objectives) is None:
        assert all(math.isfinite(objective_value(report, target)) for target in objectives)


@pytest.mark.parametrize(("used", "feasible"), [(7, True), (8, True), (9, False)])
def test_the_budget_itself_is_feasible(used: int, feasible: bool) -> None:  # noqa: FBT001  # a parameter of the test
    assert is_feasible(used, 8) is feasible


def test_a_candidate_has_its_score_and_each_raw_objective() -> None:
    candidate = make_candidate(
        candidate_id="s-agg-3",
        branch="agg",
        number=3,
        sample={"used_gpus": 4},
        reports=[REPORT],
        goal=OptimizationGoal(
            target=OptimizationTarget.PARETO,
            pareto_objectives=[OptimizationTarget.E2E_LATENCY, OptimizationTarget.GOODPUT],
            sla=SLA,
        ),
        facts={"concurrency": 3},
    )
    assert candidate == Candidate(
        candidate_id="s-agg-3",
        branch="agg",
        number=3,
        sample={"used_gpus": 4},
        reports=(REPORT,),
        report=REPORT,
        means={
            OptimizationTarget.E2E_LATENCY: Mean(2000.0, 0.0, 0),
            OptimizationTarget.GOODPUT: Mean(800.0, 0.0, 0),
        },
        score=2000.0,
        used_gpus=4,
        facts={"concurrency": 3},
    )


def test_a_ranking_is_by_score_then_fewer_gpus_then_the_earlier_suggestion(
    make_candidate: Callable[..., Candidate],
) -> None:
    ordered = [
        make_candidate("best", score=2.0, gpus=8),
        make_candidate("fewer", score=1.0, gpus=4, branch="disagg", number=9),
        make_candidate("first branch", score=1.0, gpus=8, number=7),
        make_candidate("earlier", score=1.0, gpus=8, branch="disagg", number=2),
        make_candidate("later", score=1.0, gpus=8, branch="disagg", number=3),
        make_candidate("worst", score=-math.inf, gpus=1),
    ]
    for shuffled in itertools.permutations(ordered):
        assert rank(shuffled) == ordered


def points(make: Callable[..., Candidate], rows: Sequence[tuple[float, float]]) -> list[Candidate]:
    return [
        make(str(row), number=number, objectives=dict(zip(EITHER_WAY, row, strict=True)))
        for number, row in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("rows", "front"),
    [
        # (throughput, more is better; latency, less is better), by ascending latency
        ([(1.0, 1.0)], [(1.0, 1.0)]),
        ([(1.0, 1.0), (2.0, 1.0)], [(2.0, 1.0)]),
        ([(1.0, 1.0), (1.0, 2.0)], [(1.0, 1.0)]),
        ([(2.0, 3.0), (1.0, 1.0)], [(1.0, 1.0), (2.0, 3.0)]),
        ([(2.0, 3.0), (1.0, 1.0), (1.0, 2.0), (1.5, 3.0)], [(1.0, 1.0), (2.0, 3.0)]),
        # Equals do not dominate each other.
        ([(1.0, 1.0), (1.0, 1.0)], [(1.0, 1.0), (1.0, 1.0)]),
        ([], []),
    ],
    ids=str,
)
def test_the_front_is_what_nothing_dominates(
    make_candidate: Callable[..., Candidate],
    rows: list[tuple[float, float]],
    front: list[tuple[float, float]],
) -> None:
    found = pareto_front(points(make_candidate, rows), EITHER_WAY)
    assert [tuple(candidate.objectives.values()) for candidate in found] == front


numbers = st.integers(0, 4).map(float)


@settings(deadline=None)
@given(st.lists(st.tuples(numbers, numbers, numbers), max_size=12), st.randoms())
def test_the_front_is_that_of_brute_force_in_the_order_of_its_last_objective(
    make_candidate: Callable[..., Candidate], rows: list[tuple[float, float, float]], random: Any
) -> None:
    axes = (*EITHER_WAY, OptimizationTarget.GOODPUT)
    candidates = [
        make_candidate(str(n), number=n, gpus=n % 3, objectives=dict(zip(axes, row, strict=True)))
        for n, row in enumerate(rows)
    ]

    def beaten(row: tuple[float, float, float]) -> bool:
        better = [(other[0] - row[0], row[1] - other[1], other[2] - row[2]) for other in rows]
        return any(all(d >= 0 for d in gains) and any(d > 0 for d in gains) for gains in better)

    expected = sorted(
        ((row[2], row[1], row[0], n % 3, n) for n, row in enumerate(rows) if not beaten(row)),
    )
    shuffled = list(candidates)
    random.shuffle(shuffled)
    for given_order in (candidates, shuffled):
        found = pareto_front(given_order, axes)
        assert [candidate.number for candidate in found] == [row[-1] for row in expected]
