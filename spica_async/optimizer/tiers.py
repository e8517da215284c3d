"""Into how many rows the trials of an ask are padded, and how many of them a model is fitted to."""

from __future__ import annotations

SMALLEST_TIER = 64
"""An ask of this many rows takes hardly longer than one of 32, and has no more to compile."""

LARGEST_FITTED_TIER = 256
"""Rows of the largest tier that a long history fills: the cost of a fit grows with the cube."""

_USUAL_OTHERS = 32


def rows_for(trials: int) -> int:
    """Returns the rows of the smallest tier with room for `trials`."""
    rows = SMALLEST_TIER
    while rows < trials:
        rows *= 2
    return rows


def fitted_count(observed: int, others: int) -> int:
    """Returns how many of the observed trials a model is fitted to.

    All of them, as long as they have room in the largest tier. Then one number for all asks of a
    usual size, or half of that tier for wider ones, so that their programs can be shared.

    Args:
        observed: Trials observed.
        others: Trials pending, and asked for.
    """
    if observed + others <= LARGEST_FITTED_TIER:
        return observed
    room = _USUAL_OTHERS if others <= _USUAL_OTHERS else LARGEST_FITTED_TIER // 2
    return min(observed, LARGEST_FITTED_TIER - room)
