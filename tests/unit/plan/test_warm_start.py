"""Which of many estimated deployments are picked, without any deployment."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from spica_async.plan.warm_start import Numbers, best_of_kinds, spread_front


def numbers(*values: float) -> Numbers:
    return np.array(values, dtype=np.float64)


def test_the_best_of_each_kind_is_picked_best_first() -> None:
    scores = numbers(5, 9, 7, 8, 1)
    kinds = np.array([0, 1, 0, 1, 2])
    assert best_of_kinds(scores, np.ones(5), kinds, 5) == [1, 2, 4]
    assert best_of_kinds(scores, np.ones(5), kinds, 2) == [1, 2]


def test_of_equal_scores_the_one_with_fewer_gpus_is_picked() -> None:
    kinds = np.array([3, 3, 7])
    assert best_of_kinds(numbers(4, 4, 4), numbers(8, 2, 4), kinds, 3) == [1, 2]


def front_of(values: Numbers) -> list[int]:
    """The positions that nothing dominates, by comparing each with each."""
    rows = [tuple(row) for row in values]
    return [
        at
        for at, row in enumerate(rows)
        if not any(
            other != row and all(a >= b for a, b in zip(other, row, strict=True)) for other in rows
        )
        and row not in rows[:at]
    ]


small = st_numpy.arrays(
    np.float64,
    st.tuples(st.integers(1, 25), st.integers(2, 3)),
    elements=st.integers(-4, 4).map(float),
)


@given(small, st.integers(1, 6))
def test_picks_are_distinct_points_of_the_front(values: Numbers, count: int) -> None:
    front = front_of(values)
    picks = spread_front(values, count)
    assert len(set(picks)) == len(picks) == min(count, len(front))
    assert set(picks) <= set(front)


def test_a_front_is_covered_from_its_middle_to_both_ends() -> None:
    slow = np.linspace(0, 1, 101)
    values = np.stack([1000 * slow, 3 * (1 - slow)], axis=1)
    picks = spread_front(values, 5)
    assert picks[0] == 50
    assert set(picks[1:3]) == {0, 100}
    assert set(picks[3:]) == {25, 75}
