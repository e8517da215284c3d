"""Which of many estimated deployments a search tries first: a few good ones that differ."""

from __future__ import annotations

from typing import Final

import moocore
import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Indices = NDArray[np.intp]

SEEDS: Final = 4
"""At most so many for each branch: estimates rank roughly, and each seed costs a replay."""


def best_of_kinds(scores: Numbers, gpus: Numbers, kinds: Indices, count: int) -> list[int]:
    """The best deployment of each of the best kinds, so that no two picks are near twins.

    Args:
        scores: shape (n,), more is better.
        gpus: shape (n,); of equal scores the one with fewer GPUs is better.
        kinds: shape (n,), equal for deployments that differ in replicas alone.
        count: picks to make; fewer where there are fewer kinds.

    Returns:
        Positions, best first.
    """
    order = np.lexsort((gpus, -scores))
    _, firsts = np.unique(kinds[order], return_index=True)
    return [int(order[at]) for at in np.sort(firsts)[:count]]


def spread_front(values: Numbers, count: int) -> list[int]:
    """Deployments spread along the Pareto front.

    Args:
        values: shape (n, objectives), more is better.
        count: picks to make; fewer where the front has fewer.

    Returns:
        Positions: the one that balances the objectives best, then by turns the one that lies
        farthest from all before it.
    """
    front = np.flatnonzero(moocore.is_nondominated(values, maximise=True))
    low, high = values[front].min(axis=0), values[front].max(axis=0)
    scaled = (values[front] - low) / np.where(high > low, high - low, 1)
    picks = [int(np.argmax(scaled.min(axis=1)))]
    distances = np.linalg.norm(scaled - scaled[picks[0]], axis=1)
    while len(picks) < min(count, len(front)):
        farthest = int(np.argmax(distances))
        if not distances[farthest]:
            break
        picks.append(farthest)
        distances = np.minimum(distances, np.linalg.norm(scaled - scaled[farthest], axis=1))
    return [int(front[pick]) for pick in picks]
