"""Which trials a model is fitted to, when not all of them can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spica_async.optimizer.history import most_informative
from spica_async.optimizer.types import Objective, Trial

UP = Objective("up", maximize=True)
DOWN = Objective("down", maximize=False)


def trial(number: int, **metrics: float) -> Trial:
    return Trial(number, {}, metrics or None)


def numbers(trials: tuple[Trial, ...]) -> list[int]:
    return [one.number for one in trials]


def test_a_short_history_is_kept_whole() -> None:
    history = [trial(0, up=1.0), trial(1), trial(2, up=2.0)]
    assert most_informative(history, [UP], limit=3) == tuple(history)


def test_the_best_are_kept_and_then_the_latest() -> None:
    values = [1.0, 9.0, 2.0, 8.0, 3.0, 4.0]
    history = [trial(number, up=value) for number, value in enumerate(values)]
    assert numbers(most_informative(history, [UP], limit=4)) == [1, 3, 4, 5]
    down = [trial(number, down=value) for number, value in enumerate(values)]
    assert numbers(most_informative(down, [DOWN], limit=4)) == [0, 2, 4, 5]


def test_a_failed_trial_is_kept_only_for_being_late() -> None:
    history = [trial(0), trial(1, up=5.0), trial(2, up=1.0), trial(3)]
    assert numbers(most_informative(history, [UP], limit=2)) == [1, 3]


def test_of_several_objectives_the_front_comes_first() -> None:
    history = [
        trial(0, up=1.0, down=1.0),  # on the front
        trial(1, up=1.0, down=2.0),
        trial(2, up=3.0, down=3.0),  # on the front
        trial(3, up=0.0, down=9.0),
        trial(4, up=0.0, down=8.0),
    ]
    assert numbers(most_informative(history, [UP, DOWN], limit=4)) == [0, 2, 3, 4]


@given(st.lists(st.one_of(st.none(), st.floats(-9, 9)), max_size=40), st.integers(1, 30))
def test_it_is_a_part_of_the_history_in_its_order(values: list[float | None], limit: int) -> None:
    history = [
        trial(number) if value is None else trial(number, up=value)
        for number, value in enumerate(values)
    ]
    kept = numbers(most_informative(history, [UP], limit=limit))
    assert len(kept) == min(limit, len(history))
    assert kept == sorted(set(kept))
    if kept:
        assert kept[-1] == len(history) - 1 or limit == 1
    measured = [(value, -number) for number, value in enumerate(values) if value is not None]
    if measured and limit > 1:
        assert -max(measured)[1] in kept
