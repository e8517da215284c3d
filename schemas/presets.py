"""Composite knobs of the planner: their fields, their preset ids and what each expands to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal, get_args

from pydantic import Field, JsonValue

from schemas.base import ConfigModel

PresetFields = Mapping[str, JsonValue]
PresetTable = Mapping[str, PresetFields]
LoadPredictorFamily = Literal["constant", "arima", "prophet", "kalman"]

_Count = Annotated[int, Field(gt=0)]
_Positive = Annotated[float, Field(gt=0)]


class _ScalingPolicy(ConfigModel):
    enable_throughput_scaling: bool
    enable_load_scaling: bool
    throughput_adjustment_interval_seconds: _Count
    load_adjustment_interval_seconds: _Count


class _FpmSampling(ConfigModel):
    max_num_fpm_samples: _Count
    fpm_sample_bucket_size: _Count


class _LoadSensitivity(ConfigModel):
    load_scaling_down_sensitivity: Annotated[int, Field(ge=0, le=100)]
    load_min_observations: _Count


class _LoadPredictor(ConfigModel):
    load_predictor: LoadPredictorFamily
    load_predictor_log1p: bool = False
    prophet_window_size: _Count = 50
    kalman_q_level: _Positive = 1.0
    kalman_q_trend: _Positive = 0.1
    kalman_r: _Positive = 10.0
    kalman_min_points: _Count = 5


# Fields that only one family of predictors reads.
LOAD_PREDICTOR_DEFAULTS: Final[Mapping[str, PresetFields]] = MappingProxyType(
    {
        family: {
            name: field.default
            for name, field in _LoadPredictor.model_fields.items()
            if name.startswith(f"{family}_")
        }
        for family in get_args(LoadPredictorFamily)
    }
)


def _table(model: type[ConfigModel], rows: Mapping[str, tuple[JsonValue, ...]]) -> PresetTable:
    keys = model.model_fields
    return MappingProxyType(
        {name: MappingProxyType(dict(zip(keys, row, strict=True))) for name, row in rows.items()}
    )


SCALING_POLICIES: Final = _table(
    _ScalingPolicy,
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
    _FpmSampling,
    {"small": (32, 4), "default": (64, 16), "large": (128, 16), "fine": (128, 64)},
)
LOAD_SENSITIVITIES: Final = _table(
    _LoadSensitivity,
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
COMPOSITE_PRESETS: Final[Mapping[str, PresetTable]] = MappingProxyType(
    {
        "planner_scaling_policy": SCALING_POLICIES,
        "planner_fpm_sampling": FPM_SAMPLINGS,
        "planner_load_sensitivity": LOAD_SENSITIVITIES,
        "load_predictor_candidates": LOAD_PREDICTORS,
    }
)
COMPOSITE_MODELS: Final[Mapping[str, type[ConfigModel]]] = MappingProxyType(
    {
        "planner_scaling_policy": _ScalingPolicy,
        "planner_fpm_sampling": _FpmSampling,
        "planner_load_sensitivity": _LoadSensitivity,
        "load_predictor_candidates": _LoadPredictor,
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
    defaults = LOAD_PREDICTOR_DEFAULTS[family]
    return {
        "load_predictor": family,
        "load_predictor_log1p": bool(given.get("load_predictor_log1p", False)),
        **{name: given.get(name, default) for name, default in defaults.items()},
    }
