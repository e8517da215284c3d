"""Means of replays, their intervals, and which of them differ."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spica_async.judge.noise import Mean

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=12)


def test_what_does_not_differ_is_exact_after_one_replay() -> None:
    mean = Mean.of([3.0], noisy=False)
    assert (mean.value, mean.interval, mean.is_within(1e-9)) == (3.0, (3.0, 3.0), True)


def test_one_replay_of_what_differs_says_nothing_of_its_error() -> None:
    mean = Mean.of([3.0], noisy=True)
    assert (mean.value, mean.interval) == (3.0, None)
    assert not mean.is_within(0.5)
    assert not mean.differs(Mean.of([9.0], noisy=False))
    assert not Mean.of([9.0], noisy=False).differs(mean)


def test_the_interval_is_students() -> None:
    # t(3 degrees of freedom, 97.5 %) is 3.18245, by the tables.
    mean = Mean.of([1.0, 2.0, 3.0, 4.0], noisy=True)
    assert mean.value == 2.5
    assert mean.interval is not None
    half = 3.18245 * math.sqrt(5 / 3) / 2
    assert mean.interval == pytest.approx((2.5 - half, 2.5 + half), rel=1e-5)
    assert mean.is_within(half / 2.5 + 1e-4)
    assert not mean.is_within(half / 2.5 - 1e-4)


def test_equal_replays_have_an_interval_without_width() -> None:
    mean = Mean.of([0.1, 0.1, 0.1], noisy=True)
    assert mean.interval == (mean.value, mean.value)
    assert mean.is_within(1e-12)


@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        ([1.0, 1.0], [1.0, 1.0], False),
        ([1.0, 1.0], [1.1, 1.1], True),
        ([1.0, 1.1, 0.9, 1.0], [2.0, 2.1, 1.9, 2.0], True),
        ([1.0, 3.0, 0.5, 2.0], [2.0, 4.0, 1.0, 2.5], False),
        ([1.0, 1.1, 0.9, 1.0], [1.5, 1.5], True),
    ],
)
def test_means_differ_where_the_difference_clears_the_noise_of_both(
    one: list[float], other: list[float], *, differ: bool
) -> None:
    first, second = Mean.of(one, noisy=True), Mean.of(other, noisy=True)
    assert first.differs(second) is second.differs(first) is differ


def test_an_exact_value_adds_no_doubt_to_a_difference() -> None:
    noisy = Mean.of([1.0, 1.2, 0.8, 1.1, 0.9], noisy=True)
    assert noisy.interval is not None
    low, high = noisy.interval
    assert not noisy.differs(Mean.of([high - 1e-6], noisy=False))
    assert noisy.differs(Mean.of([high + 1e-6], noisy=False))
    assert noisy.differs(Mean.of([low - 1e-6], noisy=False))


def test_more_comparisons_need_more_of_a_difference() -> None:
    one, other = (
        Mean.of([base, base + 0.2, base - 0.2, base + 0.1], noisy=True) for base in (1, 1.4)
    )
    assert one.differs(other)
    assert not one.differs(other, comparisons=4)


def test_of_many_that_are_alike_none_differs_from_the_best_in_nineteen_of_twenty_sweeps() -> None:
    draws = np.random.default_rng(1).normal(10.0, 3.0, size=(1000, 5, 6))
    wrong = 0
    for sweep in draws:
        best, *others = sorted(
            (Mean.of(list(row), noisy=True) for row in sweep), key=lambda mean: -mean.value
        )
        wrong += any(best.differs(other, comparisons=len(others)) for other in others)
    assert wrong / len(draws) < 0.12


@given(VALUES)
def test_the_mean_lies_in_its_interval_and_does_not_differ_from_itself(values: list[float]) -> None:
    mean = Mean.of(values, noisy=True)
    assert mean.interval is not None
    assert mean.interval[0] <= mean.value <= mean.interval[1]
    assert not mean.differs(mean)


def test_nineteen_of_twenty_intervals_hold_what_is_measured() -> None:
    draws = np.random.default_rng(1).normal(10.0, 3.0, size=(2000, 5))
    intervals = [Mean.of(list(row), noisy=True).interval for row in draws]
    held = sum(one is not None and one[0] <= 10.0 <= one[1] for one in intervals)
    assert 0.935 < held / len(intervals) < 0.965
