"""Statistics of relative errors, and the correlation of two orders."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from schemas.accuracy import ErrorFigures

_FEWEST_RANKED = 3
"""Two points are always in perfect order, or in its opposite."""


def error_figures(simulated: Sequence[float], measured: Sequence[float]) -> ErrorFigures:
    """How far simulated values are from the measured ones, relative to these.

    Args:
        simulated: at least one.
        measured: the value that belongs to each; all above 0.
    """
    errors = [ours / theirs - 1 for ours, theirs in zip(simulated, measured, strict=True)]
    sizes = sorted(map(abs, errors))
    return ErrorFigures(
        mean=fmean(sizes),
        median=median(sizes),
        # The nearest rank: a value that occurred.
        p90=sizes[math.ceil(0.9 * len(sizes)) - 1],
        signed_median=median(errors),
    )


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's correlation of two series, equal values sharing their mean rank.

    Returns:
        None if it says nothing: fewer than three points, or a series whose values are all equal.
    """
    if len(one) != len(other):
        raise ValueError(f"series of {len(one)} and {len(other)} values")
    if len(one) < _FEWEST_RANKED:
        return None
    ranks, others = _ranks(one), _ranks(other)
    middle = (len(one) + 1) / 2
    covariance = sum((a - middle) * (b - middle) for a, b in zip(ranks, others, strict=True))
    spread = math.sqrt(_spread(ranks, middle) * _spread(others, middle))
    if spread == 0:
        return None
    return max(-1.0, min(1.0, covariance / spread))


def _spread(ranks: Sequence[float], middle: float) -> float:
    return sum((rank - middle) ** 2 for rank in ranks)


def _ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value, from 1."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for index in order[start : end + 1]:
            ranks[index] = (start + end) / 2 + 1
        start = end + 1
    return ranks
