"""What is measured again during the search before it counts as the best."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.goal import OptimizationGoal, OptimizationTarget, SLATarget
from spica_async.judge.scoring import Candidate, make_candidate
from spica_async.search.racing import MOST_REPLICATES, Race

GOAL = OptimizationGoal(target=OptimizationTarget.THROUGHPUT)
GOODPUT = OptimizationGoal(target=OptimizationTarget.GOODPUT, sla=SLATarget(e2e_ms=1.0))


def candidate(
    *values: float, noisy: bool = True, goal: OptimizationGoal = GOAL, users: Sequence[float] = ()
) -> Candidate:
    reports = [
        {
            "output_throughput_tok_s": value,
            "goodput_output_throughput_tok_s": value,
            "mean_output_token_throughput_per_user": user,
        }
        for value, user in zip(values, users or values, strict=True)
    ]
    return make_candidate(
        candidate_id="c",
        branch="agg",
        number=0,
        sample={"used_gpus": 1, "router_mode": "kv_router" if noisy else "round_robin"},
        reports=reports,
        goal=goal,
        facts={},
    )


def race_with(*best: Candidate, goal: OptimizationGoal = GOAL, replays: int = 100) -> Race:
    race = Race(goal, replays=replays)
    for one in best:
        race.settle(one)
    return race


def test_what_would_be_the_best_is_measured_again_and_what_would_not_is_believed() -> None:
    race = race_with(candidate(10.0, noisy=False))
    assert race.wants(candidate(10.1))
    assert not race.wants(candidate(10.0))
    assert not race.wants(candidate(9.0))


def test_the_first_one_is_measured_twice() -> None:
    race = race_with()
    assert race.wants(candidate(5.0))
    assert not race.wants(candidate(5.0, 4.0))


def test_it_is_measured_until_its_interval_clears_the_best_or_it_falls_back() -> None:
    race = race_with(candidate(10.0, noisy=False))
    assert race.wants(candidate(12.0, 11.0))  # 11.5 +- 6.4
    assert not race.wants(candidate(12.0, 12.0))
    assert not race.wants(candidate(12.0, 7.0))


def test_doubt_does_not_last_for_ever() -> None:
    race = race_with(candidate(10.0, noisy=False))
    values = [15.0, 6.0, 14.0, 16.0]
    assert race.wants(candidate(*values[: MOST_REPLICATES - 1]))
    assert not race.wants(candidate(*values[:MOST_REPLICATES]))


def test_what_does_not_differ_is_never_measured_again() -> None:
    assert not race_with().wants(candidate(10.0, noisy=False))


def test_what_meets_no_sla_is_not_the_best_of_anything() -> None:
    race = race_with(goal=GOODPUT)
    assert not race.wants(candidate(0.0, goal=GOODPUT))
    assert race.wants(candidate(0.1, goal=GOODPUT))


def test_there_are_so_many_replays_for_all() -> None:
    race = race_with(replays=2)
    assert [race.wants(candidate(value)) for value in (5.0, 6.0, 7.0)] == [True, True, False]


def test_what_comes_onto_a_front_is_measured_again() -> None:
    goal = OptimizationGoal(
        target=OptimizationTarget.PARETO,
        pareto_objectives=[OptimizationTarget.THROUGHPUT, OptimizationTarget.THROUGHPUT_PER_USER],
    )
    race = race_with(
        candidate(10.0, noisy=False, users=[1.0], goal=goal),
        candidate(1.0, noisy=False, users=[10.0], goal=goal),
        goal=goal,
    )
    assert race.wants(candidate(5.0, users=[5.0], goal=goal))
    assert not race.wants(candidate(5.0, users=[1.0], goal=goal))
    assert not race.wants(candidate(5.0, 5.0, users=[5.0, 5.0], goal=goal))
    # The second replay lets one of its objectives seem far better than may be.
    assert race.wants(candidate(5.0, 5.0, users=[0.5, 9.0], goal=goal))
