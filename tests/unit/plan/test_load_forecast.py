"""The load-predictor sub-sweep, with predictors whose forecasts are known."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.messages import TraceLoad
from schemas.search_space import CompositeEntry
from spica_async.engine.planner import WindowLoad
from spica_async.plan.load_forecast import (
    EntryLoss,
    LoadPredictorResult,
    predictor_without_sweep,
    sweep_load_predictor,
    throughput_intervals,
    window_loss,
)
from spica_async.traces.arrivals import windows_by_interval

IDLE = WindowLoad(0, 0, 0)


@dataclass
class Fake:
    """Forecasts by a function of what it has observed, and keeps what happened to it."""

    forecast: Callable[[list[float]], float]
    minimum_data_points: int = 1
    observed: list[float] = field(default_factory=list)
    asked_after: list[int] = field(default_factory=list)

    def add_data_point(self, value: float) -> None:
        self.observed.append(value)

    def predict_next(self) -> float:
        self.asked_after.append(len(self.observed))
        return self.forecast(self.observed)


def last(observed: list[float]) -> float:
    return observed[-1]


def nothing(observed: list[float]) -> float:
    return 0.0


def mean(observed: list[float]) -> float:
    return sum(observed) / len(observed)


class Factory:
    """Makes a `Fake` per call, by the family of the entry."""

    def __init__(self, **families: Callable[[], Fake]) -> None:
        self.families = families
        self.made: list[tuple[str, int, Fake]] = []

    def __call__(self, fields: Mapping[str, Any], interval_seconds: int) -> Fake:
        fake = self.families[fields["load_predictor"]]()
        self.made.append((fields["load_predictor"], interval_seconds, fake))
        return fake

    def of(self, family: str) -> list[Fake]:
        return [fake for name, _, fake in self.made if name == family]


def sweep(
    factory: Factory, entries: Sequence[CompositeEntry], windows: Sequence[WindowLoad]
) -> LoadPredictorResult:
    return sweep_load_predictor(entries, [180], {180: windows}, factory)


LOADS = [WindowLoad(10 + n % 3, 1000 + 10 * n, 100 - n) for n in range(12)]


def e(forecast: float, actual: float) -> float:
    return abs(math.log((1 + forecast) / (1 + actual)))


def test_the_loss_of_a_window_by_hand() -> None:
    loss = window_loss(WindowLoad(10, 1000, 200), WindowLoad(20, 1500, 100))

    expected = (
        0.4 * e(10_000, 30_000) + 0.4 * e(2_000, 2_000) + 0.1 * e(1000, 1500) + 0.1 * e(200, 100)
    )
    assert loss == pytest.approx(expected, rel=1e-12)


def test_each_term_has_its_weight() -> None:
    actual = WindowLoad(0, 0, 0)
    grown = math.e - 1

    assert window_loss(WindowLoad(0, grown, 0), actual) == pytest.approx(0.1)
    assert window_loss(WindowLoad(0, 0, grown), actual) == pytest.approx(0.1)
    assert window_loss(WindowLoad(1, grown, 0), actual) == pytest.approx(0.5)
    assert window_loss(WindowLoad(1, 0, grown), actual) == pytest.approx(0.5)


def test_a_negative_forecast_counts_as_zero() -> None:
    assert window_loss(WindowLoad(1, -5, -7), WindowLoad(1, 0, 0)) == 0
    # Also where two of them are multiplied.
    assert window_loss(WindowLoad(-3, -5, -7), WindowLoad(0, 0, 0)) == 0
    actual = WindowLoad(3, 5, 7)
    assert window_loss(WindowLoad(-3, -5, -7), actual) == window_loss(WindowLoad(0, 0, 0), actual)


amounts = st.floats(0, 1e9)
loads = st.builds(WindowLoad, amounts, amounts, amounts)


@given(forecast=loads, actual=loads)
def test_the_loss_is_a_symmetric_distance(forecast: WindowLoad, actual: WindowLoad) -> None:
    loss = window_loss(forecast, actual)

    assert loss >= 0
    assert loss == window_loss(actual, forecast)
    assert window_loss(actual, actual) == 0


def test_the_least_loss_wins_and_every_loss_is_kept() -> None:
    factory = Factory(constant=lambda: Fake(nothing), arima=lambda: Fake(last))

    result = sweep(factory, ["constant_last", "arima_raw", "prophet_w20_raw"], LOADS)

    assert result.best_by_interval == {180: "arima_raw"}
    assert result.reason is None
    assert result.fallback_intervals == ()
    constant, arima, prophet = result.losses[180]
    expected = [window_loss(before, after) for before, after in pairwise(LOADS)]
    assert arima == EntryLoss("arima_raw", math.fsum(expected) / 11)
    assert constant.loss > arima.loss
    assert prophet.problem == "KeyError: 'prophet'"


def test_a_tie_goes_to_the_first_listed() -> None:
    factory = Factory(constant=lambda: Fake(last), arima=lambda: Fake(last))

    assert sweep(factory, ["constant_last", "arima_raw"], LOADS).best_by_interval[180] == (
        "constant_last"
    )
    assert sweep(factory, ["arima_raw", "constant_last"], LOADS).best_by_interval[180] == (
        "arima_raw"
    )


def test_a_dict_entry_wins_as_it_was_given() -> None:
    given_fields: CompositeEntry = {"load_predictor": "kalman", "kalman_r": 3.0}
    seen = []

    def factory(fields: Mapping[str, Any], interval_seconds: int) -> Fake:
        seen.append(dict(fields))
        return Fake(last)

    result = sweep_load_predictor([given_fields], [180], {180: LOADS}, factory)

    assert result.best_by_interval[180] is given_fields
    assert seen[0] == {
        "load_predictor": "kalman",
        "load_predictor_log1p": False,
        "kalman_q_level": 1.0,
        "kalman_q_trend": 0.1,
        "kalman_r": 3.0,
        "kalman_min_points": 5,
    }


def test_intervals_are_scored_apart_and_each_entry_is_reported() -> None:
    # The long windows repeat; the short ones alternate, where a mean does better.
    windows = {
        180: [WindowLoad(1 if n % 2 else 100, 100, 10) for n in range(20)],
        600: [WindowLoad(1 if n < 10 else 100, 100, 10) for n in range(20)],
    }
    factory = Factory(constant=lambda: Fake(last), arima=lambda: Fake(mean))
    reported: list[tuple[int, EntryLoss]] = []

    result = sweep_load_predictor(
        ["constant_last", "arima_raw"],
        [600, 180],
        windows,
        factory,
        lambda interval, scored: reported.append((interval, scored)),
    )

    assert result.best_by_interval == {600: "constant_last", 180: "arima_raw"}
    assert reported == [(600, one) for one in result.losses[600]] + [
        (180, one) for one in result.losses[180]
    ]
    assert {interval for _, interval, _ in factory.made} == {180, 600}


def test_each_series_has_a_predictor_that_forecasts_before_it_observes() -> None:
    factory = Factory(constant=lambda: Fake(last))

    sweep(factory, ["constant_last"], LOADS)

    requests, isl, osl = factory.of("constant")
    assert requests.observed == [window.requests for window in LOADS]
    assert isl.observed == [window.isl for window in LOADS]
    assert osl.observed == [window.osl for window in LOADS]
    for fake in (requests, isl, osl):
        assert fake.asked_after == list(range(1, 12))


def test_all_are_scored_from_the_slowest_warm_up_on() -> None:
    # Only the window after three others is off; an entry that is scored on it has a loss.
    windows = [WindowLoad(5, 100, 10)] * 3 + [WindowLoad(50, 100, 10)] * 5
    fast = "constant_last"
    scored_on_it = sweep(
        Factory(constant=lambda: Fake(last), arima=lambda: Fake(nothing, 3)),
        [fast, "arima_raw"],
        windows,
    )
    not_scored_on_it = sweep(
        Factory(constant=lambda: Fake(last), arima=lambda: Fake(nothing, 4)),
        [fast, "arima_raw"],
        windows,
    )

    one_of_five = 0.8 * 0 + 0.4 * (e(500, 5000) + e(50, 500)) / 5
    assert scored_on_it.losses[180][0].loss == pytest.approx(one_of_five)
    assert not_scored_on_it.losses[180][0].loss == 0


def test_a_predictor_is_asked_in_the_warm_up_too_as_the_planner_asks_it() -> None:
    factory = Factory(constant=lambda: Fake(last), arima=lambda: Fake(last, 6))

    sweep(factory, ["constant_last", "arima_raw"], LOADS)

    for fake in factory.of("constant") + factory.of("arima"):
        assert fake.asked_after == list(range(1, 12))


def test_without_a_warm_up_the_first_window_is_still_only_observed() -> None:
    result = sweep(Factory(constant=lambda: Fake(last, 0)), ["constant_last"], LOADS[:2])

    assert result.losses[180][0].loss == pytest.approx(
        window_loss(WindowLoad(10, 1000, 100), WindowLoad(11, 1010, 99))
    )


def test_of_a_long_trace_a_part_is_forecast_evenly_and_all_of_it_is_observed() -> None:
    asked: list[int] = []

    def noting(observed: list[float]) -> float:
        asked.append(len(observed))
        return observed[-1]

    loads = [WindowLoad(n, 100, 10) for n in range(1, 1001)]
    fakes: list[Fake] = []

    def made() -> Fake:
        fakes.append(Fake(noting, minimum_data_points=5))
        return fakes[-1]

    result = sweep(Factory(constant=made), ["constant_last"], loads)

    # The warm-up, then 64 windows, once for each of the three series.
    assert len(asked) == 3 * (4 + 64)
    windows = asked[::3]
    assert windows[:4] == [1, 2, 3, 4]
    assert {later - earlier for earlier, later in pairwise(windows[4:])} == {15, 16}
    assert windows[-1] > 980
    assert [len(one.observed) for one in fakes] == [1000] * 3
    (scored,) = result.losses[180]
    expected = [
        window_loss(WindowLoad(n, 100, 10), WindowLoad(n + 1, 100, 10)) for n in windows[4:]
    ]
    assert scored.loss == pytest.approx(math.fsum(expected) / 64)


def test_nothing_is_forecast_of_a_single_window() -> None:
    result = sweep(Factory(constant=lambda: Fake(last, 0)), ["constant_last"], LOADS[:1])

    assert result.losses[180][0].problem == (
        "the trace has 1 windows of 180 s, and the first 1 are not scored"
    )


def test_idle_windows_are_kept_and_carry_the_lengths() -> None:
    factory = Factory(constant=lambda: Fake(last))
    windows = [WindowLoad(4, 900, 90), IDLE, IDLE, WindowLoad(6, 800, 80)]

    result = sweep(factory, ["constant_last"], windows)

    requests, isl, osl = factory.of("constant")
    assert requests.observed == [4, 0, 0, 6]
    assert isl.observed == [900, 900, 900, 800]
    assert osl.observed == [90, 90, 90, 80]
    into_idle = 0.4 * (e(3600, 0) + e(360, 0)) + 0.1 * (e(900, 0) + e(90, 0))
    idle = 0.1 * (e(900, 0) + e(90, 0))
    out_of_idle = 0.4 * (e(0, 4800) + e(0, 480)) + 0.1 * (e(900, 800) + e(90, 80))
    assert result.losses[180][0].loss == pytest.approx((into_idle + idle + out_of_idle) / 3)


def test_idle_windows_before_any_request_have_no_lengths_to_carry() -> None:
    factory = Factory(constant=lambda: Fake(last))

    sweep(factory, ["constant_last"], [IDLE, WindowLoad(4, 900, 90), IDLE])

    assert [fake.observed for fake in factory.of("constant")] == [
        [0, 4, 0],
        [0, 900, 900],
        [0, 90, 90],
    ]


@pytest.mark.parametrize("count", [0, 1, 4])
def test_a_short_trace_falls_back_to_constant_last(count: int) -> None:
    factory = Factory(arima=lambda: Fake(last, 4), kalman=lambda: Fake(last, 2))

    result = sweep(factory, ["arima_raw", "kalman_reactive_raw"], LOADS[:count])

    assert result.best_by_interval == {180: "constant_last"}
    assert result.fallback_intervals == (180,)
    assert result.reason is None
    for scored in result.losses[180]:
        assert scored.loss == math.inf
        assert scored.problem == (
            f"the trace has {count} windows of 180 s, and the first 4 are not scored"
        )


def test_one_window_beyond_the_warm_up_is_enough() -> None:
    factory = Factory(arima=lambda: Fake(last, 4), kalman=lambda: Fake(last, 2))

    result = sweep(factory, ["arima_raw", "kalman_reactive_raw"], LOADS[:5])

    assert result.best_by_interval == {180: "arima_raw"}
    assert result.fallback_intervals == ()


def test_a_predictor_that_raises_is_out_and_says_why() -> None:
    def fails_late(observed: list[float]) -> float:
        if len(observed) == 7:
            raise RuntimeError("no convergence")
        return observed[-1]

    factory = Factory(arima=lambda: Fake(fails_late), constant=lambda: Fake(nothing))

    result = sweep(factory, ["arima_raw", "constant_last"], LOADS)

    assert result.losses[180][0] == EntryLoss("arima_raw", math.inf, "RuntimeError: no convergence")
    assert result.best_by_interval == {180: "constant_last"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_a_forecast_that_is_not_finite_is_out_and_says_so(value: float) -> None:
    # Finite as it is, the product of two forecasts of 1e300 is not.
    factory = Factory(
        arima=lambda: Fake(lambda observed: value if len(observed) == 3 else observed[-1]),
        constant=lambda: Fake(nothing),
    )

    result = sweep(factory, ["arima_raw", "constant_last"], LOADS)

    scored = result.losses[180][0]
    assert scored.loss == math.inf
    assert scored.problem is not None
    assert scored.problem.startswith("forecast of window 3: ")
    assert result.best_by_interval == {180: "constant_last"}


def test_an_infinite_length_is_out_though_it_would_count_as_zero() -> None:
    factory = Factory(arima=lambda: Fake(lambda observed: -math.inf if observed[-1] > 500 else 1))

    result = sweep(factory, ["arima_raw"], LOADS)

    assert result.losses[180][0].problem == (
        "forecast of window 1: WindowLoad(requests=1.0, isl=-inf, osl=1.0)"
    )


def test_where_every_predictor_fails_constant_last_stands_in() -> None:
    result = sweep(Factory(), ["arima_raw", "kalman_reactive_raw"], LOADS)

    assert result.best_by_interval == {180: "constant_last"}
    assert result.fallback_intervals == (180,)
    assert [scored.problem for scored in result.losses[180]] == [
        "KeyError: 'arima'",
        "KeyError: 'kalman'",
    ]


def test_warnings_of_a_fit_do_not_count() -> None:
    def warns(observed: list[float]) -> float:
        warnings.warn("a poor fit", UserWarning, stacklevel=1)
        return observed[-1]

    result = sweep(Factory(arima=lambda: Fake(warns)), ["arima_raw"], LOADS)

    assert math.isfinite(result.losses[180][0].loss)


def test_a_cancelled_sweep_stops() -> None:
    def interrupted(observed: list[float]) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(Factory(arima=lambda: Fake(interrupted)), ["arima_raw"], LOADS)


def test_intervals_of_policies_that_scale_by_throughput() -> None:
    own: CompositeEntry = {
        "enable_throughput_scaling": True,
        "enable_load_scaling": False,
        "throughput_adjustment_interval_seconds": 240,
        "load_adjustment_interval_seconds": 5,
    }
    policies: list[CompositeEntry] = [
        "disabled",
        "hybrid_600_5",
        own,
        "throughput_180_5",
        "throughput_600_5",
        "load_180_10",
    ]

    assert throughput_intervals(policies) == (600, 240, 180)
    assert throughput_intervals(["disabled", "load_180_5"]) == ()


def trace_load(path: Path = Path("trace.jsonl"), **fields: Any) -> TraceLoad:
    return TraceLoad(
        path=str(path), sha256="0" * 64, size_bytes=1, requests=1, total_tokens=1, **fields
    )


def test_without_intervals_there_is_nothing_to_choose() -> None:
    for trace in (None, trace_load()):
        assert predictor_without_sweep([], trace) == LoadPredictorResult(
            {}, {}, "no_throughput_scaling_candidate"
        )


def test_a_synthetic_workload_is_constant() -> None:
    assert predictor_without_sweep([180, 600], None) == LoadPredictorResult(
        {180: "constant_last", 600: "constant_last"}, {}, "static_workload_constant"
    )


def test_a_trace_in_a_closed_loop_is_constant() -> None:
    assert predictor_without_sweep([180], trace_load(concurrency=4)) == LoadPredictorResult(
        {180: "constant_last"}, {}, "closed_loop_trace_constant"
    )


def test_a_trace_in_an_open_loop_is_to_be_swept() -> None:
    assert predictor_without_sweep([180], trace_load()) is None


@pytest.mark.parametrize("speedup", [1.0, 2.5])
def test_windows_are_made_of_the_arrivals_as_replayed(tmp_path: Path, speedup: float) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(
            json.dumps(
                {"timestamp": t, "input_length": 16 + n, "output_length": 8, "hash_ids": [1]}
            )
            + "\n\n"
            for n, t in enumerate([7_500, 5_000, 10_000])
        )
    )
    asked: list[tuple[int, list[dict[str, Any]]]] = []

    def trace_windows(replayed: Path, interval_seconds: int) -> list[WindowLoad]:
        lines = [json.loads(text) for text in replayed.read_text().splitlines()]
        asked.append((interval_seconds, lines))
        return [WindowLoad(interval_seconds, 1, 1)]

    windows = windows_by_interval(
        trace_load(path, arrival_speedup_ratio=speedup, block_size=32), [180, 600], trace_windows
    )

    assert windows == {180: [WindowLoad(180, 1, 1)], 600: [WindowLoad(600, 1, 1)]}
    expected = [
        {"timestamp": t / speedup, "input_length": i, "output_length": 8}
        for t, i in ((2_500, 16), (0, 17), (5_000, 18))
    ]
    assert asked == [(180, expected), (600, expected)]


def test_windows_of_a_trace_without_end_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "".join(
            json.dumps({"timestamp": t, "input_length": 16, "output_length": 8, "hash_ids": [1]})
            + "\n"
            for t in (0, 999_999, 1_000_000, 10**10)
        )
    )
    seen: dict[int, list[float]] = {}

    def trace_windows(replayed: Path, interval_seconds: int) -> list[WindowLoad]:
        rows = [json.loads(text) for text in replayed.read_text().splitlines()]
        seen[interval_seconds] = [row["timestamp"] for row in rows]
        return []

    windows_by_interval(trace_load(path, block_size=32), [1, 180, 10**300], trace_windows)

    assert seen == {
        1: [0, 999_999],
        180: [0, 999_999, 1_000_000],
        10**300: [0, 999_999, 1_000_000, 10**10],
    }
