"""Composite knobs of the planner: their preset ids, what each expands to, and their dict keys."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from pydantic import JsonValue

PresetFields = Mapping[str, JsonValue]
PresetTable = Mapping[str, PresetFields]

SCALING_POLICY_KEYS: Final = (
    "enable_throughput_scaling",
    "enable_load_scaling",
    "throughput_adjustment_interval_seconds",
    "load_adjustment_interval_seconds",
)
FPM_SAMPLING_KEYS: Final = ("max_num_fpm_samples", "fpm_sample_bucket_size")
LOAD_SENSITIVITY_KEYS: Final = ("load_scaling_down_sensitivity", "load_min_observations")
LOAD_PREDICTOR_FAMILIES: Final = ("constant", "arima", "prophet", "kalman")
# Fields that only one family of predictors reads; the defaults are the planner's own.
LOAD_PREDICTOR_FAMILY_DEFAULTS: Final[Mapping[str, PresetFields]] = MappingProxyType(
    {
        "constant": {},
        "arima": {},
        "prophet": {"prophet_window_size": 50},
        "kalman": {
            "kalman_q_level": 1.0,
            "kalman_q_trend": 0.1,
            "kalman_r": 10.0,
            "kalman_min_points": 5,
        },
    }
)


def _table(keys: tuple[str, ...], rows: Mapping[str, tuple[JsonValue, ...]]) -> PresetTable:
    return MappingProxyType(
        {name: MappingProxyType(dict(zip(keys, row, strict=True))) for name, row in rows.items()}
    )


SCALING_POLICIES: Final = _table(
    SCALING_POLICY_KEYS,
    {
        # Without a scaling loop the intervals time nothing; they are there for a full set of keys.
        "disabled": (False, False, 180, 5),
        "throughput_180_5": (True, False, 180, 5),
        "throughput_600_5": (True, False, 600, 5),
        "load_180_5": (False, True, 180, 5),
        "load_180_10": (False, True, 180, 10),
        "hybrid_180_5": (True, True, 180, 5),
        "hybrid_600_5": (True, True, 600, 5),
    },
)
FPM_SAMPLINGS: Final = _table(
    FPM_SAMPLING_KEYS,
    {"small": (32, 4), "default": (64, 16), "large": (128, 16), "fine": (128, 64)},
)
LOAD_SENSITIVITIES: Final = _table(
    LOAD_SENSITIVITY_KEYS,
    {"aggressive": (70, 3), "default": (80, 5), "conservative": (90, 8)},
)
LOAD_PREDICTORS: Final[PresetTable] = MappingProxyType(
    {
        "constant_last": {"load_predictor": "constant", "load_predictor_log1p": False},
        "arima_raw": {"load_predictor": "arima", "load_predictor_log1p": False},
        "arima_log1p": {"load_predictor": "arima", "load_predictor_log1p": True},
        **{
            f"prophet_w{window}_{scale}": {
                "load_predictor": "prophet",
                "load_predictor_log1p": scale == "log1p",
                "prophet_window_size": window,
            }
            for window in (20, 50)
            for scale in ("raw", "log1p")
        },
        **{
            f"kalman_{name}_{scale}": {
                "load_predictor": "kalman",
                "load_predictor_log1p": scale == "log1p",
                "kalman_q_level": q_level,
                "kalman_q_trend": q_trend,
                "kalman_r": r,
                "kalman_min_points": min_points,
            }
            for name, q_level, q_trend, r, min_points in (
                ("default", 1.0, 0.1, 10.0, 5),
                ("reactive", 10.0, 1.0, 5.0, 3),
            )
            for scale in ("raw", "log1p")
        },
    }
)


def expand(entry: str | PresetFields, presets: PresetTable) -> dict[str, JsonValue]:
    """The fields behind a composite entry: a preset's, or the dict's own.

    Raises:
        KeyError: if `entry` names no preset.
    """
    return dict(presets[entry] if isinstance(entry, str) else entry)


def expand_load_predictor(entry: str | PresetFields) -> dict[str, JsonValue]:
    """The predictor's fields with its family's defaults, and none of another family's."""
    given = expand(entry, LOAD_PREDICTORS)
    family = str(given["load_predictor"])
    defaults = LOAD_PREDICTOR_FAMILY_DEFAULTS[family]
    return {
        "load_predictor": family,
        "load_predictor_log1p": bool(given.get("load_predictor_log1p", False)),
        **{name: given.get(name, default) for name, default in defaults.items()},
    }
