"""What a closed load measures once it is steady: without its first burst and its last requests.

All of a closed load's first requests arrive at once, which no service sees, and while the last ones
end there is less than the load. Both weigh more the shorter the run is, and most on disaggregated
deployments, whose prefill workers get the whole burst. `benchmarks/steady_window.py` shows by how
much, and that what is measured here is what long runs come to.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from schemas.goal import SLATarget
from schemas.messages import WHOLE, SyntheticLoad

_PERCENTILES: Final = (75, 90, 95, 99)
_MS_PER_SECOND: Final = 1000.0


@dataclass(frozen=True, slots=True)
class Served:
    """A request that a replay has served; times in milliseconds of the replay.

    Attributes:
        arrival: when it was sent.
        first: when its first token came.
        second: when its second token came; None if there is but one.
        last: when its last token came.
        inputs: tokens of its prompt.
        outputs: tokens of its answer.
    """

    arrival: float
    first: float
    second: float | None
    last: float
    inputs: int
    outputs: int

    @classmethod
    def of(cls, captured: Mapping[str, Any]) -> Self:
        """A request as the engine has captured it."""
        first, ttst = captured["first_token_ms"], captured["ttst_ms"]
        return cls(
            arrival=captured["arrival_time_ms"],
            first=first,
            second=None if ttst is None else first + ttst,
            last=captured["last_token_ms"],
            inputs=captured["input_length"],
            outputs=captured["output_length"],
        )

    @property
    def tpot(self) -> float | None:
        """The mean time between its tokens; None if there is but one."""
        return (self.last - self.first) / (self.outputs - 1) if self.outputs > 1 else None

    def latencies(self) -> Iterator[tuple[str, float | None]]:
        """Each of its latencies, by the engine's name."""
        yield "ttft_ms", self.first - self.arrival
        yield "ttst_ms", None if self.second is None else self.second - self.first
        yield "tpot_ms", self.tpot
        yield "e2e_latency_ms", self.last - self.arrival

    def tokens(self, begin: float, end: float) -> float:
        """Its tokens after `begin` and until `end`; those behind the first are evenly spread."""
        first = float(begin < self.first <= end)
        if self.outputs == 1 or self.last <= self.first:
            return first * self.outputs
        within = min(self.last, end) - max(self.first, begin)
        return first + (self.outputs - 1) * max(0.0, within) / (self.last - self.first)

    def is_good(self, sla: SLATarget) -> bool:
        """Whether it meets each service level."""
        limits = (
            (sla.ttft_ms, self.first - self.arrival),
            (sla.itl_ms, self.tpot or 0.0),
            (sla.e2e_ms, self.last - self.arrival),
        )
        return all(limit is None or value <= limit for limit, value in limits)


def steady_report(
    report: Mapping[str, float],
    per_request: Sequence[Mapping[str, Any]],
    load: SyntheticLoad,
    sla: SLATarget | None,
) -> dict[str, float]:
    """A report whose rates and latencies are those of the steady part of a closed load.

    Rates are of the time from when as many requests have ended as are in flight until the last one
    arrives; goodput is the part of that which the settled requests come to that meet the SLA. The
    times to first token are of the settled requests, other latencies of those among them that also
    end under the full load. What the engine knows of single tokens alone (percentiles of ITL,
    throughput per user) and counts are of the whole run.

    Args:
        report: the engine's, of the whole run.
        per_request: what it has captured of each request.
        load: what was replayed; a closed one, of three times its concurrency at least.
        sla: what goodput is counted by, if anything.

    Returns:
        The report, in which a value of the whole run has another name, see `WHOLE`, if there is one
        of the steady part.
    """
    assert load.concurrency is not None  # noqa: S101  # a closed load
    served = sorted(map(Served.of, per_request), key=lambda one: one.arrival)
    settled, under_load = settled_requests(served, load.concurrency)
    first_tokens = {
        name: value for name, value in latencies(settled).items() if name.endswith("_ttft_ms")
    }
    steady = latencies(under_load) | first_tokens
    begin = sorted(one.last for one in served)[load.concurrency - 1]
    end = served[-1].arrival
    if end > begin:
        steady |= rates(served, begin, end)
        if sla is not None:
            steady |= goodput(steady, settled=under_load, sla=sla)
    known = {name: value for name, value in steady.items() if name in report}
    return {**report, **{f"{WHOLE}{name}": report[name] for name in known}, **known}


def settled_requests(
    served: Sequence[Served], concurrency: int
) -> tuple[Sequence[Served], Sequence[Served]]:
    """The requests behind the burst and its echoes, and those of them that end under full load.

    Requests of one length come in waves, each as large as the concurrency, and within a wave the
    last ones wait longest. So whole waves are left out: the first half, as long as two are kept.

    Args:
        served: all of them, in the order of their arrival.
        concurrency: requests in flight.
    """
    kept = max(2, len(served) // concurrency // 2)
    first = max(concurrency, len(served) - kept * concurrency)
    settled = served[first:]
    return settled, served[first:-concurrency] or settled


def latencies(served: Sequence[Served]) -> dict[str, float]:
    """Mean, extremes, percentiles and deviation of each latency, under the engine's names."""
    values: dict[str, list[float]] = {}
    for one in served:
        for name, value in one.latencies():
            if value is not None:
                values.setdefault(name, []).append(value)
    found: dict[str, float] = {}
    for name, unsorted in values.items():
        ordered = sorted(unsorted)
        found |= {
            f"mean_{name}": statistics.fmean(ordered),
            f"min_{name}": ordered[0],
            f"max_{name}": ordered[-1],
            f"median_{name}": statistics.median(ordered),
            f"std_{name}": statistics.pstdev(ordered),
        }
        for percent in _PERCENTILES:
            found[f"p{percent}_{name}"] = ordered[math.ceil(percent / 100 * len(ordered)) - 1]
    gaps = sum(one.outputs - 1 for one in served)
    if gaps:
        found["mean_itl_ms"] = sum(one.last - one.first for one in served) / gaps
    return found


def rates(served: Sequence[Served], begin: float, end: float) -> dict[str, float]:
    """Requests and tokens per second between two times, under the engine's names."""
    ended = [one for one in served if begin < one.last <= end]
    inputs, outputs = (
        sum(one.inputs for one in ended),
        sum(one.tokens(begin, end) for one in served),
    )
    found: dict[str, float] = {
        "request_throughput_rps": len(ended),
        "input_throughput_tok_s": inputs,
        "output_throughput_tok_s": outputs,
        "total_throughput_tok_s": inputs + outputs,
    }
    return {name: value * _MS_PER_SECOND / (end - begin) for name, value in found.items()}


def goodput(
    rates: Mapping[str, float], *, settled: Sequence[Served], sla: SLATarget
) -> dict[str, float]:
    """The part of some rates that meets the SLA, under the engine's names.

    Where many requests come close to a level, the burst's echoes miss it and the settled ones do
    not: counted in the window itself, goodput would depend on the length of the run.
    """
    good = [one for one in settled if one.is_good(sla)]
    requests = len(good) / len(settled)
    outputs = sum(one.outputs for one in good) / sum(one.outputs for one in settled)
    return {
        "goodput_request_throughput_rps": requests * rates["request_throughput_rps"],
        "goodput_output_throughput_tok_s": outputs * rates["output_throughput_tok_s"],
    }
