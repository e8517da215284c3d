"""How good a search's candidates are, and when it had found them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import moocore

ENOUGH = 0.99
"""Of the better side's best value, or hypervolume."""


@dataclass(frozen=True, slots=True)
class Found:
    """One feasible candidate.

    Attributes:
        seconds: from the start of the program to its measurement.
        objectives: one value for each objective.
        label: what it deploys, for a person.
    """

    seconds: float
    objectives: tuple[float, ...]
    label: str


Quality = Callable[[Sequence[Found]], float]
"""One positive number for what was found until then, or 0 for nothing; never lower with more."""


def highest(found: Sequence[Found]) -> float:
    """The best value of the one objective, where more is better."""
    return max((one.objectives[0] for one in found), default=0.0)


def shortest(found: Sequence[Found]) -> float:
    """The inverse of the best value of the one objective, where less is better."""
    return max((1 / one.objectives[0] for one in found), default=0.0)


def hypervolume(found: Sequence[Found]) -> float:
    """The volume between the origin and the front, where more of each objective is better."""
    if not found:
        return 0.0
    points = [one.objectives for one in found]
    return float(moocore.hypervolume(points, ref=[0.0] * len(points[0]), maximise=True))


def seconds_to(level: float, found: Sequence[Found], quality: Quality) -> float | None:
    """When the candidates first reached a quality, in seconds; None if they never did."""
    in_order = sorted(found, key=lambda one: one.seconds)
    for count, last in enumerate(in_order, start=1):
        if quality(in_order[:count]) >= level:
            return last.seconds
    return None


def front(found: Sequence[Found]) -> list[Found]:
    """Those that no other one is better than in every objective."""
    if not found:
        return []
    kept = moocore.is_nondominated([one.objectives for one in found], maximise=True)
    return [one for one, keep in zip(found, kept, strict=True) if keep]
