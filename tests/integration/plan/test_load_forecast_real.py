"""The load-predictor sub-sweep with the planner's own predictors and windows."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from schemas.messages import TraceLoad
from schemas.presets import LOAD_PREDICTORS
from schemas.search_space import CompositeEntry
from spica_async.engine.planner import WindowLoad, make_predictor, trace_windows
from spica_async.plan.load_forecast import _Forecaster, sweep_load_predictor
from spica_async.traces.arrivals import windows_by_interval
from spica_async.traces.check import check_trace
from spica_async.traces.synth import SynthConfig, write_trace

# The planner's predictors import Prophet and pmdarima, which takes ten seconds by itself.
pytestmark = pytest.mark.slow

INTERVAL_SECONDS = 60


def synthetic_load(folder: Path, **fields: Any) -> TraceLoad:
    path = folder / "trace.jsonl"
    write_trace(path, SynthConfig(duration_seconds=600, mean_input_length=2_000))
    facts = check_trace(path)
    return TraceLoad(
        path=str(path),
        sha256=facts.sha256,
        size_bytes=facts.size_bytes,
        requests=facts.requests,
        total_tokens=facts.total_tokens,
        **fields,
    )


@pytest.mark.timeout(400)
def test_every_preset_forecasts_a_trace(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    entries: list[CompositeEntry] = list(LOAD_PREDICTORS)
    windows = windows_by_interval(synthetic_load(tmp_path), [INTERVAL_SECONDS], trace_windows)

    result = sweep_load_predictor(entries, [INTERVAL_SECONDS], windows, make_predictor)

    losses = result.losses[INTERVAL_SECONDS]
    assert [scored.entry for scored in losses] == entries
    assert [scored.problem for scored in losses] == [None] * len(entries)
    assert all(math.isfinite(scored.loss) for scored in losses)
    # Families are told apart; so the fields reach the predictors.
    by_entry = {str(scored.entry): scored.loss for scored in losses}
    assert by_entry["kalman_default_raw"] != by_entry["kalman_reactive_raw"]
    assert by_entry["prophet_w20_raw"] != by_entry["prophet_w20_log1p"]
    assert len({round(loss, 9) for loss in by_entry.values()}) >= 5
    assert by_entry[str(result.best_by_interval[INTERVAL_SECONDS])] == min(by_entry.values())
    # Neither Prophet nor Stan nor the planner writes a line per fit.
    assert capfd.readouterr() == ("", "")


def test_windows_follow_the_speed_of_the_replay(tmp_path: Path) -> None:
    plain = windows_by_interval(synthetic_load(tmp_path), [60, 150], trace_windows)
    faster = windows_by_interval(
        synthetic_load(tmp_path, arrival_speedup_ratio=2.5), [60], trace_windows
    )

    # A minute at 2.5 times the speed holds 150 s of the trace.
    assert [window.requests for window in faster[60]] == [window.requests for window in plain[150]]
    assert len(plain[60]) == 10
    assert sum(window.requests for window in plain[60]) == 1_000


@pytest.mark.parametrize("entry", ["constant_last", "kalman_reactive_raw"])
def test_predictors_are_fed_as_the_planner_feeds_them(entry: str) -> None:
    from dynamo.planner.core.types import TrafficObservation
    from dynamo.planner.plugins.builtins.local_planner import BuiltinLoadPredict

    fields = {
        **LOAD_PREDICTORS[entry],
        "throughput_adjustment_interval_seconds": INTERVAL_SECONDS,
        "speculative_nextn": 0,
    }
    planner = BuiltinLoadPredict(SimpleNamespace(**fields), SimpleNamespace(decode=None))
    ours = _Forecaster(lambda: make_predictor(LOAD_PREDICTORS[entry], INTERVAL_SECONDS))

    loads = [(0, 0, 0), (9, 800, 80), (7, 900, 70), (0, 0, 0), (0, 0, 0), (12, 700, 90), (3, 5, 1)]
    for load in (WindowLoad(*map(float, load)) for load in loads):
        ours.observe(load)
        planner._observe_load(
            TrafficObservation(
                duration_s=INTERVAL_SECONDS, num_req=load.requests, isl=load.isl, osl=load.osl
            )
        )
        assert ours.forecast() == pytest.approx(planner._predict_load())
