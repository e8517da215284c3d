"""A mixed space whose best value and whose front are known by construction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import moocore

from spica_async.optimizer.types import Objective
from spica_async.space.parameters import Assignment, Parameter

SCORE = Objective("score", maximize=True)
THROUGHPUT = Objective("throughput", maximize=True)
LATENCY = Objective("latency", maximize=False)

BEST_SCORE = 100.0


@dataclass(frozen=True)
class Losses:
    """What an assignment loses, each 0 or more, in natural logarithms.

    Attributes:
        shared: what spoils every objective.
        off_centre: how far the parameters that trade one objective for the other are from the
            point that the score alone is best at.
    """

    shared: float
    off_centre: float


@dataclass(frozen=True, eq=False)
class Problem:
    """One space, searched for a best score or for a front of throughput and latency.

    Every value is a best one times the exponential of minus what is lost. So no score exceeds
    `BEST_SCORE`, which `best` reaches. An assignment that loses more of what is shared is worse
    in throughput and in latency, so the front is made of those that lose nothing of it.

    Attributes:
        name: what the space is called in tables.
        parameters: the study's parameters.
        losses: what an assignment loses.
        trade: throughput and latency of an assignment were nothing of what is shared lost.
        best: an assignment that loses nothing at all.
        front: the assignments that lose nothing of what is shared, floats on a fine grid.
        reference: throughput and latency that a point has to better to count.
    """

    name: str
    parameters: tuple[Parameter, ...]
    losses: Callable[[Assignment], Losses]
    trade: Callable[[Assignment], tuple[float, float]]
    best: Assignment
    front: Callable[[], Iterable[Assignment]]
    reference: tuple[float, float]

    def score(self, assignment: Assignment) -> float:
        """The one objective, in (0, `BEST_SCORE`], to be maximized."""
        losses = self.losses(assignment)
        return BEST_SCORE * math.exp(-losses.shared - losses.off_centre)

    def throughput_and_latency(self, assignment: Assignment) -> tuple[float, float]:
        """The two objectives: the first to be maximized, the second to be minimized."""
        throughput, latency = self.trade(assignment)
        shared = self.losses(assignment).shared
        return throughput * math.exp(-shared), latency * math.exp(shared)

    def objectives(self, count: int) -> tuple[Objective, ...]:
        """The objectives of a study of this space, `count` being 1 or 2."""
        return (SCORE,) if count == 1 else (THROUGHPUT, LATENCY)

    def measure(self, assignment: Assignment, count: int) -> tuple[float, ...]:
        """The values of the `count` objectives, in their order."""
        if count == 1:
            return (self.score(assignment),)
        return self.throughput_and_latency(assignment)

    @cached_property
    def best_hypervolume(self) -> float:
        """What the whole front dominates."""
        return self.hypervolume(map(self.throughput_and_latency, self.front()))

    def hypervolume(self, points: Iterable[tuple[float, ...]]) -> float:
        """The area that pairs of throughput and latency dominate, down to the reference."""
        least, most = self.reference
        both_down = [(-throughput, latency) for throughput, latency in points]
        return float(moocore.hypervolume(both_down, ref=(-least, most)))

    def quality(self, values: Iterable[tuple[float, ...]], count: int) -> float:
        """What the best of `values`, or all of them together, reach: a share of the optimum."""
        if count == 1:
            return max(value for (value,) in values) / BEST_SCORE
        return self.hypervolume(values) / self.best_hypervolume
