"""How often a branch finds anything where little of its space is feasible.

The yardstick is the seed's: uniform draws, eleven for each candidate of a round, and then no more.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from functools import cache

import pytest

from spica_async.judge.verdict import Verdict
from spica_async.optimizer.assignments import centre
from spica_async.optimizer.quasi_random import draw
from spica_async.optimizer.types import Objective, Study
from spica_async.search.schedule.continuous import ContinuousState
from spica_async.search.schedule.rounds import RoundsState
from spica_async.search.schedule.state import BranchState, Disposition
from spica_async.space.parameters import Assignment, DiscreteParameter

SEEDS = 150
PARAMETERS = (
    DiscreteParameter("gpus", (1, 2, 4, 8), log=True),
    DiscreteParameter("seqs", tuple(range(9))),
    DiscreteParameter("tokens", tuple(range(5))),
    DiscreteParameter("weight", tuple(range(5))),
)
POINTS = tuple(
    tuple(values) for values in itertools.product(*(parameter.values for parameter in PARAMETERS))
)
FEASIBLE = Verdict("feasible")
BROKEN = Verdict("failed", "replay_error", "it broke")

MakeState = Callable[[int], BranchState]


def one_round(per_round: int) -> BranchState:
    return RoundsState(per_round=per_round, max_rounds=1)


def rounds(per_round: int) -> BranchState:
    return RoundsState(per_round=per_round, max_rounds=20)


def continuous(per_round: int) -> BranchState:
    return ContinuousState(per_round=per_round, max_rounds=20, parallel=per_round, batch=2)


def continuous_one_round(per_round: int) -> BranchState:
    return ContinuousState(per_round=per_round, max_rounds=1, parallel=per_round, batch=2)


def point(assignment: Assignment) -> tuple[object, ...]:
    return tuple(assignment[parameter.name] for parameter in PARAMETERS)


@cache
def drawn(seed: int, number: int) -> tuple[object, ...]:
    """The point of a suggestion; the first is the middle."""
    if not number:
        return point(centre(PARAMETERS))
    study = Study("agg", seed, PARAMETERS, (Objective("objective", maximize=True),))
    return point(draw(study, number))


@cache
def scattered(share: float, seed: int) -> set[tuple[object, ...]]:
    return set(random.Random(seed).sample(POINTS, round(share * len(POINTS))))


@cache
def together(share: float, seed: int) -> set[tuple[object, ...]]:
    """The points around one of them, as far as the share goes."""
    middle = random.Random(seed).choice(POINTS)

    def distance(other: tuple[float, ...]) -> float:
        return sum(abs(a - b) for a, b in zip(middle, other, strict=True))

    return set(sorted(POINTS, key=distance)[: round(share * len(POINTS))])


def tried_until_found(state: BranchState, feasible: set[tuple[object, ...]], seed: int) -> int:
    """The suggestions until the first success; 0 if the branch ends without one."""
    while not state.finished:
        first = state.attempts
        points = [drawn(seed, number) for number in range(first, first + state.wanted)]
        dispositions, _ = state.suggested([str(one) for one in points])
        for one, what in zip(points, dispositions, strict=True):
            if what is Disposition.NEW:
                if one in feasible:
                    return state.attempts
                state.settled(str(one), BROKEN)
        if state.gives_up:
            state.conclude()
    return 0


@pytest.mark.parametrize("spread", [scattered, together])
@pytest.mark.parametrize("make", [one_round, rounds, continuous, continuous_one_round])
@pytest.mark.parametrize("per_round", [1, 3, 8])
@pytest.mark.parametrize("share", [1 / 30, 1 / 9, 1 / 3])
def test_a_branch_finds_something_at_least_as_often_as_the_seed(
    share: float,
    per_round: int,
    make: MakeState,
    spread: Callable[[float, int], set[tuple[object, ...]]],
) -> None:
    found = sum(
        bool(tried_until_found(make(per_round), spread(share, seed), seed)) for seed in range(SEEDS)
    )
    chance = 1 - (1 - round(share * len(POINTS)) / len(POINTS)) ** (11 * per_round)
    deviation = math.sqrt(SEEDS * chance * (1 - chance))
    assert found >= SEEDS * chance - 2.5 * deviation - 1


@pytest.mark.parametrize("make", [rounds, continuous])
@pytest.mark.parametrize("per_round", [1, 3, 8, 16])
def test_a_branch_that_finds_nothing_ends_all_the_same(per_round: int, make: MakeState) -> None:
    state = make(per_round)
    assert not tried_until_found(state, set(), seed=1)
    most = 11 * (max(per_round, 8) if make is continuous else per_round)
    # Duplicates come on top where there are no rounds.
    assert 11 * per_round <= state.attempts < 1.2 * most + per_round
