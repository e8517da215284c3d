"""What lies beside an assignment."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from spica_async.optimizer.neighbours import neighbours
from spica_async.space.parameters import (
    Assignment,
    CategoricalParameter,
    DiscreteParameter,
    FloatParameter,
)

FLOAT = FloatParameter("ratio", 0.25, 1.0)
SIZE = DiscreteParameter("size", (1, 2, 4, 8), log=True)
MODE = CategoricalParameter("mode", ("tp", "ep", "dp"))
SPACE = (FLOAT, SIZE, MODE)


def near(assignment: Assignment, seed: int = 1) -> list[Assignment]:
    return list(neighbours(SPACE, assignment, random.Random(seed)))


@given(
    st.floats(0.25, 1.0), st.sampled_from(SIZE.values), st.sampled_from(MODE.values), st.integers()
)
def test_every_neighbour_is_of_the_space_and_single_steps_come_first(
    ratio: float, size: int, mode: str, seed: int
) -> None:
    start: Assignment = {"ratio": ratio, "size": size, "mode": mode}
    found = near(start, seed)
    for one in found:
        assert list(one) == ["ratio", "size", "mode"]
        assert isinstance(one["ratio"], float)
        assert 0.25 <= one["ratio"] <= 1.0
        assert one["size"] in SIZE.values
        assert one["mode"] in MODE.values
    sides = (size > 1) + (size < 8)
    singles = found[: 4 + sides + 2]
    assert all(sum(one[name] != start[name] for name in start) <= 1 for one in singles)
    sizes = {one["size"] for one in singles if one["size"] != size}
    assert sizes == {other for other in (size // 2, size * 2) if 1 <= other <= 8}
    assert {one["mode"] for one in singles} == set(MODE.values)


def test_the_order_is_the_generators() -> None:
    start: Assignment = {"ratio": 0.5, "size": 2, "mode": "tp"}
    assert near(start, 1) == near(start, 1)
    assert near(start, 1) != near(start, 2)


def test_the_whole_space_is_within_reach() -> None:
    space = (SIZE, MODE)
    start: Assignment = {"size": 1, "mode": "tp"}
    found = {tuple(one.values()) for one in neighbours(space, start, random.Random(3))}
    assert len(found | {(1, "tp")}) == len(SIZE.values) * len(MODE.values)
