"""What sets two measured deployments apart, and what of it clears the noise."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import JsonValue

from schemas.results import RankedCandidate
from spica_async.judge.noise import Mean
from spica_async.space.sample import is_noisy


@dataclass(frozen=True, slots=True)
class MetricDifference:
    """One metric of both.

    Attributes:
        name: The metric.
        one: Its mean in the first.
        other: Its mean in the second.
        change: The second against the first, as a part of the first; None where that is 0.
        clears_noise: Whether the difference clears the noise, by Welch's test at 95 %; None where
            one was measured too seldom for anybody to say.
    """

    name: str
    one: float
    other: float
    change: float | None
    clears_noise: bool | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two deployments side by side.

    Attributes:
        knobs: What differs in the deployments, the value of each; None where one has no such knob.
        metrics: All that both have.
    """

    knobs: dict[str, tuple[JsonValue, JsonValue]]
    metrics: list[MetricDifference]


def compare(one: RankedCandidate, other: RankedCandidate) -> Comparison:
    """Hold one candidate against another.

    Args:
        one: The first.
        other: The second.
    """
    names = dict.fromkeys((*one.config, *other.config))
    knobs = {
        name: (one.config.get(name), other.config.get(name))
        for name in names
        if one.config.get(name) != other.config.get(name)
    }
    metrics = [_difference(name, one, other) for name in one.metrics if name in other.metrics]
    return Comparison(knobs, metrics)


def _difference(name: str, one: RankedCandidate, other: RankedCandidate) -> MetricDifference:
    first, second = _mean(one, name), _mean(other, name)
    is_known = first.error is not None and second.error is not None
    return MetricDifference(
        name=name,
        one=first.value,
        other=second.value,
        change=second.value / first.value - 1 if first.value else None,
        clears_noise=first.differs(second) if is_known else None,
    )


def _mean(entry: RankedCandidate, metric: str) -> Mean:
    return Mean.with_interval(
        entry.metrics[metric],
        entry.metric_intervals.get(metric),
        replicates=entry.replicates,
        noisy=is_noisy(entry.config),
    )
