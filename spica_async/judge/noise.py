"""How far a mean of replays may be off, and which means differ.

The engine draws at random among equal workers under a KV router. How far two replays of one sample
are apart depends on the metric and the load, so it is measured and never assumed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

Interval = tuple[float, float]

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of some replays.

    Attributes:
        value: The mean.
        error: The standard error of it; None where one replay alone says nothing of it.
        freedom: Degrees of freedom of the error; 0 where the value is exact.
    """

    value: float
    error: float | None
    freedom: float

    @classmethod
    def of(cls, values: Sequence[float], *, noisy: bool) -> Mean:
        """The mean of the values of one metric, one for each replay.

        Args:
            values: One or more.
            noisy: Whether replays differ; otherwise one is exact.
        """
        # Exact, so that equal values have their own mean and no deviation.
        mean, count = float(statistics.mean(values)), len(values)
        if not noisy:
            return cls(mean, 0.0, 0)
        if count == 1:
            return cls(mean, None, 0)
        return cls(mean, statistics.stdev(values) / math.sqrt(count), count - 1)

    @classmethod
    def with_interval(
        cls, value: float, interval: Interval | None, *, replicates: int, noisy: bool
    ) -> Mean:
        """The mean that has been written down with its interval; see `of`."""
        if not noisy:
            return cls(value, 0.0, 0)
        if interval is None:
            return cls(value, None, 0)
        freedom = replicates - 1
        return cls(value, (interval[1] - interval[0]) / 2 / _quantile(freedom), freedom)

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval, by Student's t; None where nothing is known of the error."""
        if self.error is None:
            return None
        half = self.error * _quantile(self.freedom) if self.error else 0.0
        return self.value - half, self.value + half

    def is_within(self, precision: float) -> bool:
        """Whether half of the interval is at most that part of the mean."""
        interval = self.interval
        return interval is not None and interval[1] - self.value <= precision * abs(self.value)

    def differs(self, other: Mean, *, comparisons: int = 1) -> bool:
        """Whether the difference to another mean clears the noise, by Welch's test at 95 %.

        Nothing can be said, and so it does not, where the error of one is unknown.

        Args:
            other: The mean of another candidate.
            comparisons: How many are made, of which none shall be wrong in 95 % of all cases
                (Bonferroni).
        """
        if self.error is None or other.error is None:
            return False
        distance = abs(self.value - other.value)
        error, freedom = _combined((self.error, self.freedom), (other.error, other.freedom))
        return distance > (_quantile(freedom, comparisons) * error if error else 0.0)

    def over(self, other: Mean) -> Mean:
        """What part of another mean this one is; its error to the first order of both.

        Args:
            other: A mean that is not 0, of other replays than these.
        """
        part = self.value / other.value
        if self.error is None or other.error is None:
            return Mean(part, None, 0)
        ours, theirs = self.error / other.value, part * other.error / other.value
        return Mean(part, *_combined((abs(ours), self.freedom), (abs(theirs), other.freedom)))


def _combined(*errors: tuple[float, float]) -> tuple[float, float]:
    """The error of a sum and its degrees of freedom, by Welch and Satterthwaite.

    Args:
        errors: of each term, with its own degrees of freedom.
    """
    total = sum(error**2 for error, _ in errors)
    if not total:
        return 0.0, 0
    # What is exact adds nothing.
    spread = sum((error**2 / total) ** 2 / freedom for error, freedom in errors if error)
    return math.sqrt(total), 1 / spread


@cache
def _quantile(freedom: float, comparisons: int = 1) -> float:
    """The two-sided quantile of Student's t."""
    from scipy.special import stdtrit  # noqa: PLC0415  # half a second, and most sweeps need none

    return float(stdtrit(freedom, 1 - (1 - CONFIDENCE) / comparisons / 2))
