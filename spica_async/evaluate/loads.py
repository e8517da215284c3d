"""The load that each request replays, made from the workload of the configuration."""

from __future__ import annotations

from typing import Final

from schemas.config import SmartSearchConfig
from schemas.messages import Load, Sample, SyntheticLoad, TraceLoad
from schemas.workload import Workload
from spica_async.traces.check import TraceFacts


def trace_load(workload: Workload, facts: TraceFacts) -> TraceLoad:
    """The trace as a worker finds and replays it; a closed loop asks for no arrival times."""
    concurrency = workload.replay_concurrency
    return TraceLoad(
        path=str(facts.path),
        sha256=facts.sha256,
        size_bytes=facts.size_bytes,
        requests=facts.requests,
        total_tokens=facts.total_tokens,
        trace_format=workload.trace_format,
        arrival_speedup_ratio=workload.arrival_speedup_ratio if concurrency is None else 1.0,
        concurrency=concurrency,
    )


_LONG_RUN: Final = 20
"""So many times its concurrency a closed load becomes steady almost anywhere."""
_CHEAP_REQUESTS: Final = 1280
"""So many take a fifth longer to replay than a few hundred: the rest is set-up."""
_LEAST_STEADY: Final = 3
"""Of fewer times its concurrency nothing lies between the first burst and the last requests."""


def request_count(num_request_ratio: float, load: float) -> int:
    """Requests of a synthetic replay: a multiple of its concurrency or its rate, at least one."""
    return max(1, round(num_request_ratio * load))


def load_of(config: SmartSearchConfig, trace: TraceLoad | None, sample: Sample) -> Load:
    """What one sample is replayed under; a KV load has its concurrency in the sample."""
    if trace is not None:
        return trace
    workload = config.workload
    concurrency = workload.concurrency
    if config.kv_load is not None:
        derived = sample["concurrency"]
        assert isinstance(derived, int)  # noqa: S101  # written by resolve_kv_load
        concurrency = derived
    load = concurrency if concurrency is not None else workload.request_rate
    # The configuration's own rules: a synthetic workload has lengths and exactly one load.
    assert load is not None  # noqa: S101
    assert workload.isl is not None  # noqa: S101
    assert workload.osl is not None  # noqa: S101
    assert workload.num_request_ratio is not None  # noqa: S101
    requests = request_count(workload.num_request_ratio, load)
    is_steady = workload.window == "steady" and concurrency is not None
    if is_steady and concurrency is not None:
        requests = max(requests, min(_LONG_RUN * concurrency, _CHEAP_REQUESTS))
        is_steady = requests >= _LEAST_STEADY * concurrency
    return SyntheticLoad(
        isl=workload.isl,
        osl=workload.osl,
        requests=requests,
        concurrency=concurrency,
        request_rate=workload.request_rate,
        shared_prefix_ratio=workload.shared_prefix_ratio,
        num_prefix_groups=workload.num_prefix_groups,
        turns_per_session=workload.turns_per_session,
        inter_turn_delay_ms=workload.inter_turn_delay_ms,
        window="steady" if is_steady else "whole",
    )


def scaled(load: Load, factor: float) -> Load:
    """A load that comes faster, or with more requests at a time.

    Args:
        load: what is replayed under the workload's own load.
        factor: of its requests per second, or of its concurrency.
    """
    if factor == 1.0:
        return load
    if load.concurrency is not None:
        concurrency = max(1, round(load.concurrency * factor))
        if isinstance(load, TraceLoad):
            return load.model_copy(update={"concurrency": concurrency})
        ratio = load.requests / load.concurrency
        requests = request_count(ratio, concurrency)
        return load.model_copy(update={"concurrency": concurrency, "requests": requests})
    if isinstance(load, TraceLoad):
        speedup = load.arrival_speedup_ratio * factor
        return load.model_copy(update={"arrival_speedup_ratio": speedup})
    assert load.request_rate is not None  # noqa: S101  # A synthetic load has exactly one of both.
    return load.model_copy(update={"request_rate": load.request_rate * factor})
