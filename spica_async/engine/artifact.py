"""What is kept of one replay for charts: few points, in few bytes.

Pure: the engine's per-request records and telemetry in, text for a message out.
"""

from __future__ import annotations

import base64
import gzip
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from schemas.artifact import Artifact, Latency, ScalingEvent
from schemas.messages import MAX_ARTIFACT_BYTES

POINTS: Final = 200
"""Of a distribution, at most."""
SAMPLES: Final = 500
"""Of a series, at most."""

_DIGITS: Final = 6
# Two deployments are compared by them request by request.
_PAIRED: Final = ("ttft_ms", "e2e_latency_ms")
# By their names in a record of the engine, which calls the mean of a request's gaps its ITL.
_LATENCIES: Final = {
    "ttft_ms": "ttft_ms",
    "tpot_ms": "itl_ms",
    "e2e_latency_ms": "e2e_latency_ms",
}

Series = dict[str, list[float | None]]
Record = Mapping[str, Any]


def make_artifact(
    requests: Iterable[Record],
    samples: Iterable[Record],
    scaling: Sequence[Record],
    gpus_per_worker: Mapping[str, float],
) -> Artifact:
    """Reduce what the engine has captured.

    Args:
        requests: Its record of each request.
        samples: Its telemetry, in the order of time.
        scaling: What its planner has done.
        gpus_per_worker: By role, `prefill` and `decode`; without prefill workers the deployment is
            aggregated, and the engine reports its workers as those of `decode`.
    """
    values: dict[str, list[float]] = {name: [] for name in _LATENCIES}
    ordered = sorted(requests, key=lambda one: (one["arrival_time_ms"], one["uuid"]))
    for request in ordered:
        for name, key in _LATENCIES.items():
            if request[key] is not None:
                values[name].append(request[key])
    pools = {"prefill": "prefill", "decode": "decode"}
    if not gpus_per_worker.get("prefill"):
        pools = {"agg": "decode"}
    rows = [_row(sample, pools, gpus_per_worker) for sample in samples]
    series: Series = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    while any(len(column) > SAMPLES for column in series.values()):
        series = _halved(series)
    return Artifact(
        latencies={name: _latency(found) for name, found in values.items() if found},
        series={name: [_rounded(value) for value in column] for name, column in series.items()},
        requests={name: [_digits(request[name]) for request in ordered] for name in _PAIRED},
        scaling=[ScalingEvent.model_validate(event) for event in scaling],
        scaling_count=len(scaling),
    )


def packed(artifact: Artifact, most_bytes: int = MAX_ARTIFACT_BYTES) -> str | None:
    """An artifact as JSON, compressed by gzip, in base64.

    Args:
        artifact: Thinned as often as that takes.
        most_bytes: That it may have compressed.

    Returns:
        None: that cannot be.
    """
    while True:
        body = gzip.compress(artifact.model_dump_json().encode(), mtime=0)
        if len(body) <= most_bytes:
            return base64.b64encode(body).decode()
        thinner = thinned(artifact)
        if thinner == artifact:
            return None
        artifact = thinner


def thinned(artifact: Artifact) -> Artifact:
    """An artifact without single requests or, if it has none, with half the points.

    Of series these are the means of two neighbours, of the scaling every other event.
    """
    if artifact.requests:
        return artifact.model_copy(update={"requests": {}})
    return Artifact(
        latencies={
            name: one.model_copy(
                update={"points": quantiles(one.points, max(2, len(one.points) // 2))}
            )
            for name, one in artifact.latencies.items()
        },
        series={
            name: [_rounded(value) for value in column]
            for name, column in _halved(artifact.series).items()
        },
        scaling=artifact.scaling[::2],
        scaling_count=artifact.scaling_count,
    )


def quantiles(ascending: Sequence[float], most: int) -> list[float]:
    """Some quantiles of values, the least and the greatest among them, evenly apart.

    Args:
        ascending: The values; as few as `most` come back as they are.
        most: How many quantiles, at least 2; what lies between two values is interpolated.
    """
    if len(ascending) <= most:
        return list(ascending)
    last = len(ascending) - 1
    points = []
    for i in range(most):
        below, part = divmod(i * last, most - 1)
        low, high = ascending[below], ascending[min(below + 1, last)]
        points.append(low + (high - low) * part / (most - 1))
    return points


def _latency(values: list[float]) -> Latency:
    points = quantiles(sorted(values), POINTS)
    return Latency(
        count=len(values),
        mean=math.fsum(values) / len(values),
        points=[_digits(point) for point in points],
    )


def _row(
    sample: Record, pools: Mapping[str, str], gpus_per_worker: Mapping[str, float]
) -> dict[str, float | None]:
    """One sample of the telemetry, by column."""
    traffic = sample["traffic"]
    seconds = traffic["duration_s"]
    row: dict[str, float | None] = {
        "time_s": sample["sampled_at_ms"] / 1000,
        "gpus": 0.0,
        "arriving_rps": _part(traffic["arriving_requests"], seconds),
        "completed_rps": _part(traffic["completed_requests"], seconds),
    }
    gpus = 0.0
    for pool, role in pools.items():
        serving, starting, draining = (
            float(len(sample[f"{state}_{role}_ids"]))
            for state in ("active", "starting", "draining")
        )
        gpus += (serving + starting + draining) * gpus_per_worker.get(role, 0.0)
        ranks, interval = sample[f"{role}_scheduler_metrics"], sample[f"{role}_interval_metrics"]
        pending = sample[f"router_pending_{role}_requests"]
        row |= {
            f"{pool}.replicas": serving,
            f"{pool}.starting": starting,
            f"{pool}.draining": draining,
            f"{pool}.running": float(sum(rank["running_requests"] for rank in ranks)),
            f"{pool}.waiting": float(pending + sum(rank["waiting_requests"] for rank in ranks)),
            f"{pool}.kv_usage": _part(sum(r["active_cache_usage"] for r in ranks), len(ranks)),
            f"{pool}.hit_rate": _part(interval["cache_hit_tokens"], interval["cache_total_tokens"]),
        }
    row["gpus"] = gpus
    return row


def _part(value: float, of: float) -> float | None:
    return value / of if of else None


def _halved(series: Mapping[str, Sequence[float | None]]) -> Series:
    """Each two neighbours as one: their mean, at the time of the later."""
    return {
        name: [
            pair[-1] if name == "time_s" else _mean(pair)
            for pair in (column[i : i + 2] for i in range(0, len(column), 2))
        ]
        for name, column in series.items()
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else _digits(value)


def _digits(value: float) -> float:
    """More digits would only take room."""
    return float(f"{value:.{_DIGITS}g}")
