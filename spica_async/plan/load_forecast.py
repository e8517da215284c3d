"""The load-predictor sub-sweep: which forecaster suits the trace, per throughput interval.

The planner's predictive scaling forecasts the next window's load. Before the search every listed
predictor forecasts the whole trace one window ahead, and the one with the least mean loss is pinned
for that interval. Optimizers have no part in it.

Only the arithmetic lives here. The predictors and the windows are the planner's own and come in
from outside, in the process that may import them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, cast

from schemas.messages import TraceLoad
from schemas.presets import SCALING_POLICIES, PresetFields, expand, expand_load_predictor
from schemas.search_space import CompositeEntry
from spica_async.engine.planner import Predictor, WindowLoad

FALLBACK_PREDICTOR: Final = "constant_last"

# A fit of one series takes a tenth of a second, and there are dozens to each window.
_MOST_FORECASTS: Final = 64

SkipReason = Literal[
    "no_throughput_scaling_candidate", "static_workload_constant", "closed_loop_trace_constant"
]


PredictorFactory: TypeAlias = Callable[[PresetFields, int], Predictor]
"""Makes a fresh predictor of the planner's fields and the interval in seconds."""


@dataclass(frozen=True, slots=True)
class EntryLoss:
    """How one entry forecast the windows of one interval.

    `loss` is the mean over the scored windows, infinite where `problem` says why there is none.
    """

    entry: CompositeEntry
    loss: float
    problem: str | None = None


ScoredCallback: TypeAlias = Callable[[int, EntryLoss], None]
"""Takes each interval, in seconds, and entry once it is scored; a fit can take seconds."""


@dataclass(frozen=True, slots=True)
class LoadPredictorResult:
    """The predictor to run per throughput interval in seconds.

    `losses` keeps the order in which the entries were listed and is empty where nothing was
    scored; `reason` then says why.
    """

    best_by_interval: Mapping[int, CompositeEntry] = field(default_factory=dict)
    losses: Mapping[int, tuple[EntryLoss, ...]] = field(default_factory=dict)
    reason: SkipReason | None = None

    @property
    def fallback_intervals(self) -> tuple[int, ...]:
        """Intervals for which no entry could be scored, so that `constant_last` stands in."""
        return tuple(
            interval
            for interval, losses in self.losses.items()
            if all(math.isinf(scored.loss) for scored in losses)
        )


def throughput_intervals(policies: Iterable[CompositeEntry]) -> tuple[int, ...]:
    """The distinct intervals, in seconds, of the policies that scale by throughput, as listed."""
    expanded = [expand(policy, SCALING_POLICIES) for policy in policies]
    return tuple(
        dict.fromkeys(
            cast("int", policy["throughput_adjustment_interval_seconds"])
            for policy in expanded
            if policy["enable_throughput_scaling"]
        )
    )


def predictor_without_sweep(
    intervals: Sequence[int], trace: TraceLoad | None
) -> LoadPredictorResult | None:
    """The result where there is no series to learn from; None where the trace must be forecast.

    A trace replayed in a closed loop has none either: its arrival times are ignored, and the next
    request comes when a candidate has finished one. What the planner then sees is each candidate's
    own throughput at a constant number in flight, which no window of the trace foretells.

    Args:
        intervals: throughput intervals in seconds.
        trace: the trace to replay; None for a synthetic workload.
    """
    if not intervals:
        return LoadPredictorResult(reason="no_throughput_scaling_candidate")
    if trace is None:
        return _constant(intervals, "static_workload_constant")
    if trace.concurrency is not None:
        return _constant(intervals, "closed_loop_trace_constant")
    return None


def sweep_load_predictor(
    entries: Sequence[CompositeEntry],
    intervals: Sequence[int],
    windows: Mapping[int, Sequence[WindowLoad]],
    predictor_factory: PredictorFactory,
    on_scored: ScoredCallback | None = None,
) -> LoadPredictorResult:
    """Score every entry on every interval; the least loss wins, the first listed among equals.

    Args:
        entries: the candidates, presets or dicts.
        intervals: throughput intervals in seconds.
        windows: per interval the windows of the trace in order of time, idle ones included.
        predictor_factory: makes the planner's predictors; one each for requests and both lengths.
        on_scored: takes each loss as soon as it is known.
    """
    best: dict[int, CompositeEntry] = {}
    losses: dict[int, tuple[EntryLoss, ...]] = {}
    for interval in intervals:
        scored = []
        for entry_loss in _score_interval(entries, interval, windows[interval], predictor_factory):
            scored.append(entry_loss)
            if on_scored is not None:
                on_scored(interval, entry_loss)
        losses[interval] = tuple(scored)
        winner = min(scored, key=lambda entry_loss: entry_loss.loss)
        best[interval] = FALLBACK_PREDICTOR if math.isinf(winner.loss) else winner.entry
    return LoadPredictorResult(best, losses)


def window_loss(forecast: WindowLoad, actual: WindowLoad) -> float:
    """Weighted logarithmic error of one window, 0 for a perfect forecast.

    Token totals count for 0.4 each, since they are what has to be served, the mean lengths for
    0.1 each. Below 0 a forecast counts as 0. An idle window counts with the planner's own figures
    for it, all 0.
    """
    # Before the products: two forecasts below 0 would make a load above it.
    forecast, actual = _at_least_zero(forecast), _at_least_zero(actual)
    return (
        0.4 * _log_error(forecast.requests * forecast.isl, actual.requests * actual.isl)
        + 0.4 * _log_error(forecast.requests * forecast.osl, actual.requests * actual.osl)
        + 0.1 * _log_error(forecast.isl, actual.isl)
        + 0.1 * _log_error(forecast.osl, actual.osl)
    )


def _at_least_zero(load: WindowLoad) -> WindowLoad:
    # Not with max, for which a NaN is no more than 0; it must come through.
    return WindowLoad(*(0.0 if value < 0 else value for value in load))


def _log_error(forecast: float, actual: float) -> float:
    return abs(math.log1p(forecast) - math.log1p(actual))


def _constant(intervals: Sequence[int], reason: SkipReason) -> LoadPredictorResult:
    return LoadPredictorResult(dict.fromkeys(intervals, FALLBACK_PREDICTOR), reason=reason)


class _Forecaster:
    """Three predictors, fed and asked as the planner feeds and asks its own."""

    def __init__(self, make_predictor: Callable[[], Predictor]) -> None:
        self._requests = make_predictor()
        self._isl = make_predictor()
        self._osl = make_predictor()
        self._last_shape = (0.0, 0.0)
        self.warm_up = self._requests.minimum_data_points

    def forecast(self) -> WindowLoad:
        return WindowLoad(
            float(self._requests.predict_next()),
            float(self._isl.predict_next()),
            float(self._osl.predict_next()),
        )

    def observe(self, load: WindowLoad) -> None:
        # The planner carries the lengths through an idle window, which has none of its own.
        if load.requests > 0:
            self._last_shape = (load.isl, load.osl)
        isl, osl = self._last_shape
        self._requests.add_data_point(load.requests)
        self._isl.add_data_point(isl)
        self._osl.add_data_point(osl)


def _score_interval(
    entries: Sequence[CompositeEntry],
    interval: int,
    windows: Sequence[WindowLoad],
    predictor_factory: PredictorFactory,
) -> Iterator[EntryLoss]:
    forecasters = [_forecaster(entry, interval, predictor_factory) for entry in entries]
    # Every entry is scored on the same windows: those for which the slowest starter is ready.
    # Nobody forecasts from nothing, hence at least one.
    warm_up = max([1, *(one.warm_up for one in forecasters if isinstance(one, _Forecaster))])
    for entry, forecaster in zip(entries, forecasters, strict=True):
        if isinstance(forecaster, EntryLoss):
            yield forecaster
        elif len(windows) <= warm_up:
            yield EntryLoss(
                entry,
                math.inf,
                f"the trace has {len(windows)} windows of {interval} s, "
                f"and the first {warm_up} are not scored",
            )
        else:
            yield _score(entry, forecaster, windows, warm_up)


def _forecaster(
    entry: CompositeEntry, interval: int, predictor_factory: PredictorFactory
) -> _Forecaster | EntryLoss:
    fields = expand_load_predictor(entry)
    try:
        return _Forecaster(lambda: predictor_factory(fields, interval))
    except Exception as error:  # noqa: BLE001 - one entry's failure is its own; the loss keeps it.
        return EntryLoss(entry, math.inf, _described(error))


def _score(
    entry: CompositeEntry, forecaster: _Forecaster, loads: Sequence[WindowLoad], warm_up: int
) -> EntryLoss:
    losses = []
    try:
        with _without_warnings():
            forecaster.observe(loads[0])
            scored = _scored(warm_up, len(loads))
            for number, load in enumerate(loads[1:], start=1):
                if number >= warm_up and number not in scored:
                    forecaster.observe(load)
                    continue
                # Not scored before the warm-up; but the planner asks then as well, and what it
                # asks first may be what a model is fitted to.
                forecast = forecaster.forecast()
                loss = window_loss(forecast, load)
                if not all(map(math.isfinite, (*forecast, loss))):
                    return EntryLoss(entry, math.inf, f"forecast of window {number}: {forecast}")
                if number >= warm_up:
                    losses.append(loss)
                forecaster.observe(load)
    except Exception as error:  # noqa: BLE001 - a fit may fail in any way; the loss keeps it.
        return EntryLoss(entry, math.inf, _described(error))
    return EntryLoss(entry, math.fsum(losses) / len(losses))


def _scored(first: int, end: int) -> frozenset[int]:
    """Which of the windows from `first` to `end` are forecast: all, or as many as may be, evenly.

    The others are only observed, which is quick and all that a later forecast needs of them.
    """
    count = min(end - first, _MOST_FORECASTS)
    return frozenset(first + (end - first) * position // count for position in range(count))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep the statistics libraries' remarks on each fit, a dozen per window, off the terminal.

    Whether a fit is any good is what the loss shows.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
