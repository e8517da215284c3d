"""How long nothing got better, with one objective and with several."""

from __future__ import annotations

import pytest

from schemas.goal import OptimizationTarget as Target
from spica_async.judge.noise import Mean
from spica_async.judge.scoring import Candidate
from spica_async.search.patience import Patience


def candidate(*values: float, targets: tuple[Target, ...] = (Target.THROUGHPUT,)) -> Candidate:
    means = {target: Mean(value, 0.0, 0) for target, value in zip(targets, values, strict=True)}
    first = targets[0]
    return Candidate(
        candidate_id="c",
        branch="agg",
        number=0,
        sample={},
        reports=({},),
        report={},
        means=means,
        score=values[0] if first.maximize else -values[0],
        used_gpus=1,
    )


def counts(stagnation: Patience, *found: Candidate) -> list[int]:
    since = []
    for one in found:
        stagnation.add(one)
        since.append(stagnation.since)
    return since


def test_what_is_better_starts_the_count_anew() -> None:
    stagnation = Patience([Target.THROUGHPUT], patience=9, min_improvement=0.0)
    found = [candidate(value) for value in (5.0, 4.0, 5.0, 5.1, 3.0)]
    assert counts(stagnation, *found) == [0, 1, 2, 0, 1]


def test_small_steps_add_up_to_something_better() -> None:
    stagnation = Patience([Target.THROUGHPUT], patience=9, min_improvement=0.1)
    found = [candidate(value) for value in (100.0, 106.0, 110.0, 111.0, 120.0)]
    # 10 % of 100 are not exceeded by 110; 111 is the new measure, and 120 is no 10 % above it.
    assert counts(stagnation, *found) == [0, 1, 2, 0, 1]


def test_less_latency_is_better() -> None:
    stagnation = Patience([Target.E2E_LATENCY], patience=9, min_improvement=0.01)
    found = [candidate(v, targets=(Target.E2E_LATENCY,)) for v in (4000.0, 3990.0, 4100.0, 3950.0)]
    assert counts(stagnation, *found) == [0, 1, 2, 0]


def test_a_front_is_better_when_its_hypervolume_grows() -> None:
    targets = (Target.THROUGHPUT_PER_GPU, Target.THROUGHPUT_PER_USER)
    stagnation = Patience(targets, patience=9, min_improvement=0.05)
    found = [
        candidate(a, b, targets=targets)
        for a, b in ((10, 10), (9, 9), (10, 10), (20, 1), (20.5, 1), (5, 40))
    ]
    # (20, 1) adds 10 to 100; (20.5, 1) adds half of one more; (5, 40) adds 150.
    assert counts(stagnation, *found) == [0, 1, 2, 0, 1, 0]


@pytest.mark.parametrize(("latency", "since"), [(500.0, 0), (1000.0, 1), (2000.0, 1)])
def test_a_minimised_objective_enters_the_hypervolume_as_its_inverse(
    latency: float, since: int
) -> None:
    targets = (Target.THROUGHPUT, Target.E2E_LATENCY)
    stagnation = Patience(targets, patience=9, min_improvement=0.0)
    first, second = candidate(10, 1000, targets=targets), candidate(10, latency, targets=targets)
    assert counts(stagnation, first, second) == [0, since]


def test_goodput_of_nothing_is_no_improvement() -> None:
    stagnation = Patience([Target.THROUGHPUT], patience=9, min_improvement=0.0)
    assert counts(stagnation, candidate(0.0), candidate(0.0), candidate(0.1)) == [0, 1, 0]


def test_patience_is_lost_at_its_count_and_not_before() -> None:
    stagnation = Patience([Target.THROUGHPUT], patience=2, min_improvement=0.0)
    lost = []
    for value in (5.0, 4.0, 6.0, 1.0, 1.0):
        stagnation.add(candidate(value))
        lost.append(stagnation.lost)
    assert lost == [False, False, False, False, True]


def test_without_patience_nothing_is_counted() -> None:
    stagnation = Patience([Target.THROUGHPUT], patience=None, min_improvement=0.0)
    assert counts(stagnation, candidate(5.0), candidate(5.0)) == [0, 0]
    assert not stagnation.lost
