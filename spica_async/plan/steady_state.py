"""What deployments would do under a steady load, from the times of single steps.

Queueing in closed form, vectorised over deployments: every array has shape (n,) unless it says
otherwise. Times are in milliseconds. Routers, planners and prefix hits that depend on them are left
out: this ranks deployments and predicts none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from schemas.goal import OptimizationTarget, SLATarget

Numbers = NDArray[np.float64]

# Enough for a fixed point that is approached by half or more in each.
_ROUNDS = 8
# Some requests miss a level before their mean does.
_SPREAD = 0.1
_HOPELESS = 1e-3
_ALMOST_FULL = 0.95


@dataclass(frozen=True)
class StepTable:
    """Times of single steps, one row per kind of worker.

    Attributes:
        prefill_batches: two or more, ascending from 1, shape (p,).
        prefill_ms: shape (kinds, p).
        decode_batches: two or more, ascending from 1, shape (d,).
        decode_ms: shape (kinds, d).
    """

    prefill_batches: Numbers
    prefill_ms: Numbers
    decode_batches: Numbers
    decode_ms: Numbers


@dataclass(frozen=True)
class Workers:
    """All workers of one role.

    Attributes:
        table: the times of their steps.
        kind: the row of each deployment in `table`, shape (n,) of integers.
        ranks: attention ranks of all replicas together, each with a scheduler of its own.
        most_prefilled: requests that one rank prefills at once, at least 1.
        most_decoded: requests that one rank decodes at once, at least 1.
    """

    table: StepTable
    kind: NDArray[np.intp]
    ranks: Numbers
    most_prefilled: Numbers
    most_decoded: Numbers

    def take(self, positions: NDArray[np.int32]) -> Workers:
        """The workers of some deployments, in the order of `positions`."""
        return Workers(
            self.table,
            self.kind[positions],
            self.ranks[positions],
            self.most_prefilled[positions],
            self.most_decoded[positions],
        )

    def prefill_ms(self, batch: Numbers | float) -> Numbers:
        """A step that prefills `batch` requests of a rank, from 1 to `most_prefilled`."""
        wanted = np.clip(batch, 1, self.most_prefilled)
        return _interpolate(self.table.prefill_batches, self.table.prefill_ms, self.kind, wanted)

    def decode_ms(self, batch: Numbers | float) -> Numbers:
        """A step that decodes `batch` requests of a rank, from 1 to `most_decoded`."""
        wanted = np.clip(batch, 1, self.most_decoded)
        return _interpolate(self.table.decode_batches, self.table.decode_ms, self.kind, wanted)


@dataclass(frozen=True)
class ClosedLoop:
    """Equal requests, so many in flight.

    Attributes:
        osl: output tokens of a request.
        concurrency: requests in flight.
        waves: requests for each one in flight, at least 1.
    """

    osl: int
    concurrency: Numbers
    waves: float


@dataclass(frozen=True)
class OpenLoop:
    """Equal requests that arrive whether the others have ended or not.

    Attributes:
        osl: output tokens of a request.
        per_ms: arrivals in a millisecond.
        requests: how many there are.
        regular: whether they arrive at equal intervals, else as they please.
    """

    osl: int
    per_ms: float
    requests: float
    regular: bool


SteadyLoad: TypeAlias = ClosedLoop | OpenLoop


@dataclass(frozen=True)
class Performance:
    """What deployments do.

    Attributes:
        tokens_per_s: output tokens per second.
        ttft_ms: mean time to the first token.
        least_ttft_ms: the same of the luckiest request.
        tpot_ms: mean time per output token after the first.
        step_ms: a decode step that no prefill holds up.
        e2e_ms: mean time of a request.
    """

    tokens_per_s: Numbers
    ttft_ms: Numbers
    least_ttft_ms: Numbers
    tpot_ms: Numbers
    step_ms: Numbers
    e2e_ms: Numbers

    def objective(
        self, target: OptimizationTarget, gpus: Numbers, sla: SLATarget | None
    ) -> Numbers:
        """The value of one scalar target, signed so that more is better.

        Raises:
            ValueError: for `PARETO`, which is no objective of its own.
        """
        match target:
            case OptimizationTarget.THROUGHPUT:
                return self.tokens_per_s
            case OptimizationTarget.THROUGHPUT_PER_GPU:
                return self.tokens_per_s / gpus
            case OptimizationTarget.THROUGHPUT_PER_USER:
                # A mean over tokens, of which few are held up.
                return 1000 / self.step_ms
            case OptimizationTarget.E2E_LATENCY:
                return -self.e2e_ms
            case OptimizationTarget.GOODPUT:
                return self._goodput(sla)
            case OptimizationTarget.GOODPUT_PER_GPU:
                return self._goodput(sla) / gpus
        raise ValueError("pareto is several objectives: ask for each of them")

    def _goodput(self, sla: SLATarget | None) -> Numbers:
        assert sla is not None  # noqa: S101  # the goal's own rule
        met = np.ones_like(self.tokens_per_s)
        for level, least, mean in (
            (sla.ttft_ms, self.least_ttft_ms, self.ttft_ms),
            (sla.itl_ms, self.step_ms, self.tpot_ms),
            (sla.e2e_ms, self.e2e_ms, self.e2e_ms),
        ):
            if level is not None:
                met = met * _share_within(level, least, mean)
        return self.tokens_per_s * met


def aggregated(workers: Workers, load: SteadyLoad) -> Performance:
    """Workers that prefill and decode by turns: while some prompts are prefilled, others wait."""
    if isinstance(load, ClosedLoop):
        busy = np.minimum(workers.ranks, load.concurrency)
        held = load.concurrency / busy
        batch = np.minimum(held, workers.most_decoded)
        together = np.minimum(batch, workers.most_prefilled)
        # From one request to the next in each of a rank's `batch` places.
        cycle = batch * workers.prefill_ms(together) / together
        cycle = cycle + load.osl * workers.decode_ms(batch)
        per_ms = busy * batch / cycle
        waited = (held - batch) * cycle / batch
        first = np.minimum(_grouped_prefill(workers, batch, load.waves), cycle)
    else:
        first = workers.prefill_ms(1)
        most = workers.ranks * workers.most_decoded
        most = most / _one_by_one(workers, workers.most_decoded, load.osl)
        # An overloaded rank fills up until it is full or the load is over.
        fullest = np.clip(load.requests / workers.ranks / 2, 1, workers.most_decoded)
        batch = np.ones_like(workers.ranks)
        for _ in range(_ROUNDS):
            cycle = _one_by_one(workers, batch, load.osl)
            # Little's law: so many are in flight.
            batch = np.clip(load.per_ms / workers.ranks * cycle, 1, fullest)
        waited = _queueing(load, most, workers.ranks / first)
        per_ms = _served(load, most, waited + cycle)
    return Performance(
        tokens_per_s=1000 * load.osl * per_ms,
        ttft_ms=waited + first,
        least_ttft_ms=first,
        tpot_ms=(cycle - first) / load.osl,
        step_ms=workers.decode_ms(batch),
        e2e_ms=waited + cycle,
    )


def disaggregated(prefill: Workers, decode: Workers, load: SteadyLoad) -> Performance:
    """Workers that prefill and workers that decode: the slower of both sets the pace."""
    together = prefill.most_prefilled
    fullest = load.osl * decode.decode_ms(decode.most_decoded)
    most = np.minimum(
        prefill.ranks * together / prefill.prefill_ms(together),
        decode.ranks * decode.most_decoded / fullest,
    )
    if isinstance(load, ClosedLoop):
        queued = np.maximum(1, load.concurrency / prefill.ranks)
        first = _grouped_prefill(prefill, queued, load.waves)
    else:
        first = prefill.prefill_ms(1)
    decoding = load.osl * decode.decode_ms(1)
    for _ in range(_ROUNDS):
        offered = (
            load.concurrency / (first + decoding) if isinstance(load, ClosedLoop) else load.per_ms
        )
        per_ms = np.minimum(most, offered)
        # Little's law: so many are being decoded.
        decoding = load.osl * decode.decode_ms(per_ms * decoding / decode.ranks)
    if isinstance(load, ClosedLoop):
        waited = np.maximum(load.concurrency / per_ms - decoding - first, 0)
    else:
        waited = _queueing(load, most, prefill.ranks / first)
        per_ms = _served(load, most, first + waited + decoding)
    return Performance(
        tokens_per_s=1000 * load.osl * per_ms,
        ttft_ms=first + waited,
        least_ttft_ms=first,
        tpot_ms=decoding / load.osl,
        step_ms=decoding / load.osl,
        e2e_ms=first + waited + decoding,
    )


def _one_by_one(workers: Workers, batch: Numbers, osl: int) -> Numbers:
    """From one request to the next in each of a rank's `batch` places, in an open loop.

    Prompts come one by one, and a step that prefills one makes the others' next tokens as well.
    """
    decoding = np.maximum(osl - batch, 0) * workers.decode_ms(batch)
    return batch * workers.prefill_ms(1) + decoding


def _grouped_prefill(workers: Workers, batch: Numbers, waves: float) -> Numbers:
    """How long the prompt of a closed loop's request takes, with those prefilled in one step.

    Requests that start together end together, and so their successors start together: groups as
    large as a step takes stay groups. Only the first of the waves queues up group behind group.
    """
    together = np.minimum(batch, workers.most_prefilled)
    behind = (batch / together - 1) / 2
    return workers.prefill_ms(together) * (1 + behind / waves)


def _queueing(load: OpenLoop, most: Numbers, prompts: Numbers) -> Numbers:
    """How long a request waits for its prefill to start.

    Below the limit it waits as in a queue for equal services, or, arriving at equal intervals, not
    at all; above the limit, for half of the backlog that the whole load leaves.

    Args:
        load: what arrives.
        most: requests that could be served in a millisecond.
        prompts: prompts that could be prefilled in a millisecond, one by one.
    """
    backlog = load.requests / 2 * (1 / np.minimum(most, load.per_ms) - 1 / load.per_ms)
    if load.regular:
        return backlog
    busy = np.minimum(load.per_ms / most, _ALMOST_FULL)
    waited: Numbers = backlog + busy / (2 * (1 - busy)) / prompts
    return waited


def _served(load: OpenLoop, most: Numbers, e2e_ms: Numbers) -> Numbers:
    """Requests served in a millisecond until the last one has its answer."""
    arriving = load.requests / load.per_ms
    took: Numbers = np.maximum(arriving + e2e_ms, load.requests / most)
    return load.requests / took


def _share_within(level: float, least: Numbers, mean: Numbers) -> Numbers:
    """The share of requests within a level, spread evenly around their mean."""
    low = np.minimum(least, mean * (1 - _SPREAD))
    high = 2 * mean - low
    share = np.clip((level - low) / (high - low), 0, 1)
    # Where none is, the one that misses by less is still the better one.
    shown: Numbers = np.maximum(share, _HOPELESS * np.minimum(1, level / mean))
    return shown


def _interpolate(
    batches: Numbers, times: Numbers, kind: NDArray[np.intp], wanted: Numbers
) -> Numbers:
    right = np.clip(np.searchsorted(batches, wanted), 1, len(batches) - 1)
    left = right - 1
    part = (wanted - batches[left]) / (batches[right] - batches[left])
    found: Numbers = times[kind, left] * (1 - part) + times[kind, right] * part
    return found
