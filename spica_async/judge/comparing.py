"""What sets two measured deployments apart, and what of it clears the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
class PairedDifference:
    """A latency of both, request by request.

    Attributes:
        name: The latency.
        requests: How many pairs.
        change_ms: The mean of the second less the first.
        margin_ms: Half of its 95 % interval.
        faster: The part of the requests that the second serves faster.
    """

    name: str
    requests: int
    change_ms: float
    margin_ms: float
    faster: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two deployments side by side.

    Attributes:
        knobs: What differs in the deployments, the value of each; None where one has no such knob.
        metrics: All that both have.
        paired: By the same requests, of one replay of each; empty where nothing is kept of them.
    """

    knobs: dict[str, tuple[JsonValue, JsonValue]]
    metrics: list[MetricDifference]
    paired: list[PairedDifference] = field(default_factory=list)


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


def paired(
    one: Mapping[str, Sequence[float]], other: Mapping[str, Sequence[float]]
) -> list[PairedDifference]:
    """Hold two replays of one load against each other, request by request.

    Args:
        one: Latencies of each request, in the same order in both.
        other: Likewise.

    Returns:
        None of a latency that the two have of another number of requests, or of a single one.
    """
    found = []
    for name in one.keys() & other.keys():
        if len(one[name]) != len(other[name]) or len(one[name]) == 1:
            continue
        changes = [after - before for before, after in zip(one[name], other[name], strict=True)]
        mean = Mean.of(changes, noisy=True)
        assert mean.interval is not None  # noqa: S101  # there are several
        found.append(
            PairedDifference(
                name=name,
                requests=len(changes),
                change_ms=mean.value,
                margin_ms=mean.interval[1] - mean.value,
                faster=sum(change < 0 for change in changes) / len(changes),
            )
        )
    return sorted(found, key=lambda difference: difference.name)


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
