"""A workload as a steady stream of equal requests, which is all that an estimate can be made of."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from schemas.config import SmartSearchConfig
from schemas.messages import TraceLoad
from spica_async.traces.check import read_requests

# The head of a trace shows its lengths and its rate well enough to rank deployments by.
_TRACE_HEAD: Final = 2000


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """Equal requests; without concurrency and rate, each deployment derives its own concurrency.

    Attributes:
        isl: input tokens of a request.
        osl: output tokens of a request.
        cached: of the input, the tokens that other requests have in common with it.
        waves: requests of a closed loop for each one in flight, at least 1.
        requests: how many an open loop sends.
        concurrency: requests in flight of a closed loop, or None.
        per_ms: arrivals in a millisecond of an open loop, or None.
        regular: whether these come at equal intervals.
    """

    isl: int
    osl: int
    cached: int
    waves: float
    requests: float
    concurrency: int | None
    per_ms: float | None
    regular: bool


def offered_load(config: SmartSearchConfig, trace: TraceLoad | None) -> OfferedLoad:
    """The workload's means.

    Raises:
        TraceError: if the trace cannot be read any more.
    """
    if trace is not None:
        return _trace_means(trace)
    workload = config.workload
    # The configuration's own rules: a synthetic workload has all three.
    assert workload.isl is not None  # noqa: S101
    assert workload.osl is not None  # noqa: S101
    assert workload.num_request_ratio is not None  # noqa: S101
    rate = workload.request_rate
    return OfferedLoad(
        isl=workload.isl,
        osl=workload.osl,
        # A prefill always computes its last token.
        cached=min(int(workload.isl * workload.shared_prefix_ratio), workload.isl - 1),
        waves=max(1.0, workload.num_request_ratio),
        requests=max(1.0, workload.num_request_ratio * (rate or 0)),
        concurrency=workload.concurrency,
        per_ms=None if rate is None else rate / 1000,
        regular=True,
    )


def _trace_means(trace: TraceLoad) -> OfferedLoad:
    head = list(
        itertools.islice(read_requests(Path(trace.path), block_size=trace.block_size), _TRACE_HEAD)
    )
    times = [request.timestamp_ms for request in head]
    # Not the last one's less the first one's: turns of a session may stand before their time.
    span_ms = max(times) - min(times)
    per_ms = None
    if trace.concurrency is None:
        # Requests that arrive at once are a rate as well: of all of them in a millisecond.
        per_ms = len(head) * trace.arrival_speedup_ratio / max(span_ms, 1.0)
    return OfferedLoad(
        isl=max(1, round(sum(request.input_length for request in head) / len(head))),
        osl=max(1, round(sum(request.output_length for request in head) / len(head))),
        cached=0,
        waves=max(1.0, trace.requests / (trace.concurrency or trace.requests)),
        requests=trace.requests,
        concurrency=trace.concurrency,
        per_ms=per_ms,
        regular=False,
    )
