"""How much better than the baseline a candidate is, and how far that may be off."""

from __future__ import annotations

from schemas.goal import OptimizationTarget
from schemas.results import Gain
from spica_async.judge.noise import Mean
from spica_async.judge.scoring import Candidate


def gains(candidate: Candidate, baseline: Candidate | None) -> dict[OptimizationTarget, Gain]:
    """The gain in each objective; none where there is no baseline, or it is at 0 there."""
    if baseline is None:
        return {}
    return {
        target: gain(mean, baseline.means[target], maximize=target.maximize)
        for target, mean in candidate.means.items()
        if baseline.means[target].value
    }


def gain(mean: Mean, baseline: Mean, *, maximize: bool) -> Gain:
    """How much better one mean is than that of the baseline, in percent of it.

    Args:
        mean: of a candidate.
        baseline: of the same metric, not 0.
        maximize: whether more is better.
    """
    ratio = mean.over(baseline)
    interval = ratio.interval
    better = ratio.value - 1 if maximize else 1 - ratio.value
    margin = None if interval is None else 100 * (interval[1] - ratio.value)
    return Gain(percent=100 * better, margin=margin)
