"""Counts candidates without an improvement, to end a search that no longer gets better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import moocore
import numpy as np

from schemas.goal import OptimizationTarget
from spica_async.judge.scoring import Candidate


@dataclass(slots=True)
class Patience:
    """Counts the candidates since the best value, or the hypervolume, last got better.

    Better is what grows by more than `min_improvement` since it last counted as better, so that
    many small steps add up. The hypervolume is that of the front over the origin; an objective
    that is minimised enters it as its inverse.

    Attributes:
        objectives: what is optimised, one or several.
        patience: the count at which it is lost, or None where nothing is counted.
        min_improvement: the part of the value by which it has to grow, 0 or more.
        since: candidates since the last that made it better.
    """

    objectives: Sequence[OptimizationTarget]
    patience: int | None
    min_improvement: float
    since: int = 0
    _best: float | None = None
    _front: list[list[float]] = field(default_factory=list)

    @property
    def lost(self) -> bool:
        """Whether there is no patience left."""
        return self.patience is not None and self.since >= self.patience

    def add(self, candidate: Candidate) -> None:
        """Take in one more candidate."""
        if self.patience is None:
            return
        value = (
            candidate.score
            if len(self.objectives) == 1
            else self._hypervolume(candidate.objectives)
        )
        best = self._best
        if best is None or value - best > self.min_improvement * abs(best):
            self._best = value
            self.since = 0
        else:
            self.since += 1

    def _hypervolume(self, objectives: Mapping[OptimizationTarget, float]) -> float:
        point = [
            value if target.maximize else 1 / value if value > 0 else 0.0
            for target, value in ((target, objectives[target]) for target in self.objectives)
        ]
        points = np.array([*self._front, point])
        self._front = moocore.filter_dominated(points, maximise=True).tolist()
        return float(moocore.hypervolume(self._front, ref=[0.0] * len(point), maximise=True))
