from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from schemas.presets import (
    FPM_SAMPLINGS,
    LOAD_PREDICTORS,
    LOAD_SENSITIVITIES,
    SCALING_POLICIES,
    expand_load_predictor,
)
from spica_async.engine.planner import (
    WindowLoad,
    check_planner_fields,
    make_predictor,
    trace_windows,
)


@pytest.mark.parametrize(
    "fields",
    [
        *SCALING_POLICIES.values(),
        *FPM_SAMPLINGS.values(),
        *LOAD_SENSITIVITIES.values(),
        *(expand_load_predictor(name) for name in LOAD_PREDICTORS),
    ],
)
def test_every_preset_pleases_the_planner(fields: dict[str, Any]) -> None:
    assert check_planner_fields(fields) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_num_fpm_samples": 64, "fpm_sample_bucket_size": 15}, "fpm_sample_bucket_size"),
        (
            {"load_scaling_down_sensitivity": 101, "load_min_observations": 3},
            "load_scaling_down_sensitivity: ",
        ),
        (
            {
                "enable_throughput_scaling": True,
                "enable_load_scaling": True,
                "throughput_adjustment_interval_seconds": 5,
                "load_adjustment_interval_seconds": 5,
            },
            "load_adjustment_interval_seconds",
        ),
        (
            {
                "enable_throughput_scaling": False,
                "enable_load_scaling": False,
                "load_adjustment_interval_seconds": -1,
            },
            "load_adjustment_interval_seconds: ",
        ),
        ({"load_predictor": "oracle"}, "load_predictor: "),
        ({"load_predictor": "prophet", "prophet_window_size": 0}, "prophet_window_size: "),
        ({"no_such_field": 1}, "no_such_field: "),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_field(fields: dict[str, Any], message: str) -> None:
    found = check_planner_fields(fields)
    assert found is not None
    assert message in found
    assert "\n" not in found


@pytest.mark.parametrize(("name", "points"), [("constant_last", 1), ("kalman_reactive_raw", 3)])
def test_a_predictor_follows_a_constant_series(name: str, points: int) -> None:
    predictor = make_predictor(expand_load_predictor(name), 180)
    assert predictor.minimum_data_points == points
    for _ in range(20):
        predictor.add_data_point(50.0)
    assert predictor.predict_next() == pytest.approx(50.0, rel=0.01)


@pytest.mark.parametrize(
    "field",
    [
        {"load_predictor_log1p": True},
        {"kalman_q_level": 10.0},
        {"kalman_q_trend": 1.0},
        {"kalman_r": 5.0},
        {"kalman_min_points": 9},
    ],
)
def test_each_field_of_a_predictor_changes_its_forecast(field: dict[str, Any]) -> None:
    default = expand_load_predictor("kalman_default_raw")
    forecasts = []
    for fields in (default, default | field):
        predictor = make_predictor(fields, 180)
        for value in (10.0, 40.0, 20.0, 80.0, 30.0, 90.0):
            predictor.add_data_point(value)
        forecasts.append(predictor.predict_next())
    assert forecasts[0] != forecasts[1]


@pytest.mark.slow
def test_the_other_families_predict_from_a_short_series() -> None:
    for name in ("arima_raw", "prophet_w20_log1p"):
        predictor = make_predictor(expand_load_predictor(name), 180)
        for value in range(10, 17):
            predictor.add_data_point(float(value))
        assert 14 < predictor.predict_next() < 20


def test_predictors_leave_our_logging_alone() -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    make_predictor({"load_predictor": "constant"}, 60)
    assert (root.handlers, root.level) == before


def _write(path: Path, rows: list[tuple[float, int, int]]) -> Path:
    lines = [
        json.dumps({"timestamp": at, "input_length": isl, "output_length": osl, "hash_ids": [0]})
        for at, isl, osl in rows
    ]
    path.write_text("\n".join(lines))
    return path


def test_windows_hold_requests_and_mean_lengths_and_keep_empty_ones(tmp_path: Path) -> None:
    path = _write(tmp_path / "t.jsonl", [(0, 100, 10), (59_999, 300, 30), (180_000, 50, 5)])
    assert trace_windows(path, 60) == [
        WindowLoad(requests=2, isl=200.0, osl=20.0),
        WindowLoad(requests=0, isl=0.0, osl=0.0),
        WindowLoad(requests=0, isl=0.0, osl=0.0),
        WindowLoad(requests=1, isl=50.0, osl=5.0),
    ]


def test_an_empty_trace_has_no_windows(tmp_path: Path) -> None:
    assert trace_windows(_write(tmp_path / "t.jsonl", []), 60) == []
