"""What the scheduling benchmark concludes from when replays began and ended."""

from __future__ import annotations

from typing import Literal

import pytest
from scheduling import Record, Task, goals

TWO_SLOTS = ((10.0, 20.0), (10.0, 14.0), (16.0, 22.0), (20.0, 30.0))
"""Two replays side by side, the next after a gap, and one alone in the end."""


def record(
    schedule: Literal["rounds", "continuous"],
    *,
    seed: int = 1,
    replays: tuple[tuple[float, float], ...] = TWO_SLOTS,
    best: float = 500.0,
) -> Record:
    return Record(Task(schedule, 2, seed, 1.0), replays, 3.0, (1.0, best, 2.0), 0)


def test_slots_are_looked_at_from_the_first_replay_on() -> None:
    measured = record("rounds")
    assert measured.first_began == 10
    assert measured.seconds == 20
    assert measured.busy == pytest.approx(30 / 40)
    # The last one begins at 20: both slots had 10 s until then, and one had a gap of 2 s.
    assert measured.busy_while_asking == pytest.approx(18 / 20)
    assert measured.best == 0.5
    assert measured.best_of_first_half == 0.001


def test_medians_are_judged() -> None:
    busy = ((0.0, 10.0), (0.0, 9.0), (9.0, 20.0), (10.0, 20.0))
    idle = ((0.0, 1.0), (5.0, 6.0))
    rounds = [record("rounds", seed=n, best=best) for n, best in enumerate((300, 600, 700))]
    good = [record("continuous", seed=n, replays=busy, best=599.5) for n in range(3)]
    assert [is_met for _, is_met in goals([*rounds, *good])] == [True, True]
    bad = [record("continuous", seed=n, replays=idle, best=598) for n in range(3)]
    assert [is_met for _, is_met in goals([*rounds, *bad])] == [False, False]
    assert len(goals(good)) == 1
    assert goals(rounds) == []
