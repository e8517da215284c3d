"""Which branches a sweep evaluates as a whole, because its budget covers all that there is."""

from __future__ import annotations

from schemas.config import SmartSearchConfig
from spica_async.space.branch import BranchSpace


def enumerable_points(config: SmartSearchConfig, space: BranchSpace) -> int | None:
    """The branch's distinct samples, if they can be counted and the budget covers them all."""
    points = space.distinct_selections
    if points is None or points > config.sweep.max_rounds * config.sweep.per_round:
        return None
    return points
