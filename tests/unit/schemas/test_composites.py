"""Composite knobs: presets, mappings that are written out, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from schemas.config import SmartSearchConfig
from schemas.presets import COMPOSITE_PRESETS, LOAD_PREDICTORS

POLICY = {
    "enable_throughput_scaling": True,
    "enable_load_scaling": False,
    "throughput_adjustment_interval_seconds": 240,
    "load_adjustment_interval_seconds": 5,
}
ZERO_UP = "input should be greater than or equal to 0"
POSITIVE = "input should be greater than 0"
WHOLE = "input should be a valid integer"
FINITE = "input should be a finite number"


@pytest.mark.parametrize("knob", COMPOSITE_PRESETS)
@pytest.mark.parametrize("entry", ["disable", None, 3, ["disabled"], True], ids=str)
def test_a_composite_takes_its_presets_and_mappings_only(
    problem_of: Callable[..., str], knob: str, entry: object
) -> None:
    found = problem_of(space={knob: [next(iter(COMPOSITE_PRESETS[knob])), entry]})
    assert found.startswith(f"search_space.{knob}[1]: {entry!r} is not a choice; use ")
    for preset in COMPOSITE_PRESETS[knob]:
        assert preset in found


@pytest.mark.parametrize("knob", COMPOSITE_PRESETS)
def test_a_composite_is_a_list_with_an_entry(problem_of: Callable[..., str], knob: str) -> None:
    values: list[object] = [[], "default", None]
    for value in values:
        found = problem_of(space={knob: value})
        assert found.startswith(f"search_space.{knob}: a list of one or more of ")


@pytest.mark.parametrize(
    ("knob", "entry"),
    [
        ("planner_scaling_policy", POLICY),
        ("planner_fpm_sampling", {"max_num_fpm_samples": 7, "fpm_sample_bucket_size": 9}),
        (
            "planner_load_sensitivity",
            {"load_scaling_down_sensitivity": 0, "load_min_observations": 1},
        ),
        (
            "planner_load_sensitivity",
            {"load_scaling_down_sensitivity": 100, "load_min_observations": 1},
        ),
        ("load_predictor_candidates", {"load_predictor": "arima"}),
        ("load_predictor_candidates", {"load_predictor": "constant", "load_predictor_log1p": True}),
        *(("load_predictor_candidates", dict(fields)) for fields in LOAD_PREDICTORS.values()),
    ],
)
def test_a_composite_mapping_is_kept_as_it_is_written(
    load_blocks: Callable[..., SmartSearchConfig], knob: str, entry: dict[str, Any]
) -> None:
    preset = next(iter(COMPOSITE_PRESETS[knob]))
    assert getattr(load_blocks(space={knob: [preset, entry]}).search_space, knob) == [preset, entry]


@pytest.mark.parametrize("missing", POLICY)
def test_a_scaling_policy_has_all_its_keys(problem_of: Callable[..., str], missing: str) -> None:
    entry = {key: value for key, value in POLICY.items() if key != missing}
    found = problem_of(space={"planner_scaling_policy": [entry]})
    assert found == f"search_space.planner_scaling_policy[0].{missing}: required"


@pytest.mark.parametrize(
    ("knob", "entry", "expected"),
    [
        (
            "planner_fpm_sampling",
            {"max_num_fpm_samples": 32},
            "[0].fpm_sample_bucket_size: required",
        ),
        (
            "planner_load_sensitivity",
            {"load_scaling_down_sensitivity": 70},
            "[0].load_min_observations: required",
        ),
        ("load_predictor_candidates", {}, "[0].load_predictor: required"),
        (
            "load_predictor_candidates",
            {"load_predictor": "kalmann"},
            (
                "[0].load_predictor: input should be 'constant', 'arima', 'prophet' or 'kalman', "
                "not 'kalmann'"
            ),
        ),
        (
            "load_predictor_candidates",
            {"load_predictor": "arima", "prophet_window_size": 20},
            "[0]: prophet_window_size has no effect on the arima predictor",
        ),
        (
            "load_predictor_candidates",
            {"load_predictor": "prophet", "kalman_r": 1.0},
            "[0]: kalman_r has no effect on the prophet predictor",
        ),
        (
            "load_predictor_candidates",
            {"load_predictor": "kalman", "kalman_r": math.nan},
            f"[0].kalman_r: {FINITE}, not nan",
        ),
        (
            "planner_scaling_policy",
            {**POLICY, "load_adjustment_interval_seconds": 0},
            f"[0].load_adjustment_interval_seconds: {POSITIVE}, not 0",
        ),
        (
            "planner_scaling_policy",
            {**POLICY, "throughput_adjustment_interval_seconds": True},
            f"[0].throughput_adjustment_interval_seconds: {WHOLE}, not True",
        ),
        (
            "planner_scaling_policy",
            {**POLICY, "enable_load_scaling": 1},
            "[0].enable_load_scaling: input should be a valid boolean, not 1",
        ),
        (
            "planner_load_sensitivity",
            {"load_scaling_down_sensitivity": 101, "load_min_observations": 1},
            "[0].load_scaling_down_sensitivity: input should be less than or equal to 100, not 101",
        ),
        (
            "planner_load_sensitivity",
            {"load_scaling_down_sensitivity": -1, "load_min_observations": 1},
            f"[0].load_scaling_down_sensitivity: {ZERO_UP}, not -1",
        ),
    ],
)
def test_a_composite_mapping_holds_legal_values(
    problem_of: Callable[..., str],
    knob: str,
    entry: dict[str, Any],
    expected: str,
) -> None:
    assert problem_of(space={knob: [entry]}) == f"search_space.{knob}{expected}"


def test_the_presets_are_those_of_the_reference() -> None:
    def rows(knob: str) -> dict[str, tuple[Any, ...]]:
        return {name: tuple(row.values()) for name, row in COMPOSITE_PRESETS[knob].items()}

    # Throughput scaling, load scaling, and their intervals in seconds.
    policies = rows("planner_scaling_policy")
    assert policies.pop("disabled")[:2] == (False, False)
    assert policies == {
        "throughput_180_5": (True, False, 180, 5),
        "throughput_600_5": (True, False, 600, 5),
        "load_180_5": (False, True, 180, 5),
        "load_180_10": (False, True, 180, 10),
        "hybrid_180_5": (True, True, 180, 5),
        "hybrid_600_5": (True, True, 600, 5),
    }
    # Samples, bucket size.
    assert rows("planner_fpm_sampling") == {
        "small": (32, 4),
        "default": (64, 16),
        "large": (128, 16),
        "fine": (128, 64),
    }
    # Sensitivity in percent, observations.
    assert rows("planner_load_sensitivity") == {
        "aggressive": (70, 3),
        "default": (80, 5),
        "conservative": (90, 8),
    }
    # Family, log1p; window, or q_level, q_trend, r, points.
    assert rows("load_predictor_candidates") == {
        "constant_last": ("constant", False),
        "arima_raw": ("arima", False),
        "arima_log1p": ("arima", True),
        "prophet_w20_raw": ("prophet", False, 20),
        "prophet_w20_log1p": ("prophet", True, 20),
        "prophet_w50_raw": ("prophet", False, 50),
        "prophet_w50_log1p": ("prophet", True, 50),
        "kalman_default_raw": ("kalman", False, 1.0, 0.1, 10.0, 5),
        "kalman_default_log1p": ("kalman", True, 1.0, 0.1, 10.0, 5),
        "kalman_reactive_raw": ("kalman", False, 10.0, 1.0, 5.0, 3),
        "kalman_reactive_log1p": ("kalman", True, 10.0, 1.0, 5.0, 3),
    }
