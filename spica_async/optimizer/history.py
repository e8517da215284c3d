"""Which trials a model is fitted to, once there are more than it can be fitted to in time."""

from __future__ import annotations

from collections.abc import Sequence

import moocore
import numpy as np

from spica_async.optimizer.types import Objective, Trial


def most_informative(
    history: Sequence[Trial], objectives: Sequence[Objective], limit: int
) -> tuple[Trial, ...]:
    """Returns at most `limit` trials: the better half of them for what is best, the rest latest.

    With several objectives a trial is the better the fewer fronts lie before its own. The choice is
    a function of the history alone, so that any process makes the same one.

    Args:
        history: The trials observed so far, by ascending number.
        objectives: The study's objectives.
        limit: How many to keep.

    Returns:
        The kept trials, by ascending number.
    """
    if len(history) <= limit:
        return tuple(history)
    measured = [trial for trial in history if trial.metrics is not None]
    kept = {trial.number for trial in _best(measured, objectives, limit // 2)}
    for trial in reversed(history):
        if len(kept) == limit:
            break
        kept.add(trial.number)
    return tuple(trial for trial in history if trial.number in kept)


def _best(trials: list[Trial], objectives: Sequence[Objective], count: int) -> list[Trial]:
    if not trials:
        return []
    # The library takes the direction of a single objective for upward when it is given in a list.
    signs = np.array([1 if objective.maximize else -1 for objective in objectives])
    values = np.array(
        [[(trial.metrics or {})[objective.name] for objective in objectives] for trial in trials]
    )
    ranks = moocore.pareto_rank(values * signs, maximise=True)
    order = sorted(range(len(trials)), key=lambda at: (ranks[at], trials[at].number))
    return [trials[at] for at in order[:count]]
