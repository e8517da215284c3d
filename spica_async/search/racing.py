"""Decides what is measured again during the search, before it counts as the best.

Pure, and shared by all branches of a sweep: what it decides follows from the measurements and their
order alone.
"""

from __future__ import annotations

from typing import Final

import moocore
import numpy as np

from schemas.goal import OptimizationGoal
from spica_async.judge.scoring import Candidate
from spica_async.judge.sweep_result import is_useful
from spica_async.space.sample import is_noisy

MOST_REPLICATES: Final = 4
"""Of one candidate; what is still in doubt then is for the confirmation to find out."""


class Race:
    """The best of a sweep so far, which a noisy candidate has to beat more than once.

    Args:
        goal: what makes one candidate better than another.
        replays: how often candidates may be measured again in all.
    """

    def __init__(self, goal: OptimizationGoal, *, replays: int) -> None:
        self._goal = goal
        self._left = replays
        self._front: list[list[float]] = []

    def wants(self, candidate: Candidate) -> bool:
        """Whether to measure a candidate once more; counts as a replay if so.

        It is measured again while it seems to be better than the best, and its interval does not
        show it.
        """
        if not (
            self._left
            and is_noisy(candidate.sample)
            and candidate.replicates < MOST_REPLICATES
            and is_useful(candidate.objectives, self._goal)
            and self._is_better(self._point(candidate, pessimistic=False))
        ):
            return False
        if candidate.replicates > 1 and self._is_better(self._point(candidate, pessimistic=True)):
            return False
        self._left -= 1
        return True

    def settle(self, candidate: Candidate) -> None:
        """Take in a candidate that is not measured again."""
        points = np.array([*self._front, self._point(candidate, pessimistic=False)])
        self._front = moocore.filter_dominated(points, maximise=True).tolist()

    def _point(self, candidate: Candidate, *, pessimistic: bool) -> list[float]:
        """Its objectives, more of each is better; by their means or the worse ends of intervals."""
        point = []
        for target in self._goal.objectives:
            mean = candidate.means[target]
            low, high = (mean.interval if pessimistic else None) or (mean.value, mean.value)
            point.append(low if target.maximize else -high)
        return point

    def _is_better(self, point: list[float]) -> bool:
        """Whether nothing so far is at least as good in every objective."""
        return not any(
            all(theirs >= ours for theirs, ours in zip(other, point, strict=True))
            for other in self._front
        )
