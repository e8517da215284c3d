"""The planner's own checks, load predictors and trace windows; for preparation children."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from pydantic import ValidationError

from spica_async.engine import runtime

_CONFIG: Final = "dynamo.planner.config.planner_config"


class Predictor(Protocol):
    """A load predictor: forecasts the next value of one series from those it was given.

    Attributes:
        minimum_data_points: Observations before which it has no model yet, only the last value.
    """

    minimum_data_points: int

    def add_data_point(self, value: float) -> None:
        """Observe the series' next value."""

    def predict_next(self) -> float:
        """Forecast the value after the last that was observed."""


class WindowLoad(NamedTuple):
    """What arrives in one interval, observed or forecast.

    Attributes:
        requests: How many requests; 0 for an empty window.
        isl: Their mean input length in tokens, 0 if there are none.
        osl: Their mean output length in tokens, 0 if there are none.
    """

    requests: float
    isl: float
    osl: float


def check_planner_fields(fields: Mapping[str, Any]) -> str | None:
    """What the planner's own configuration class says against `fields`; None if nothing.

    Args:
        fields: Any of the planner's scaling, sampling, sensitivity and predictor fields. Fields
            that are left out take the planner's defaults, and its target is `sla`, under which
            all of them are in force. A policy without any scaling loop has no planner to ask:
            its fields are checked as if load scaling were on.

    Returns:
        One line that names the field, or None.
    """
    planner_config = runtime.load(_CONFIG).PlannerConfig
    known = set(planner_config.model_fields)
    unknown = sorted(set(fields) - known)
    if unknown:
        return f"{unknown[0]}: the planner has no such field"
    asked = {"optimization_target": "sla", **fields}
    if not (asked.get("enable_throughput_scaling", True) or asked.get("enable_load_scaling")):
        asked["enable_load_scaling"] = True
    try:
        planner_config.model_validate(asked)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = " ".join(str(first["msg"]).removeprefix("Value error, ").split())
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {message}" if where else message
    return None


def make_predictor(fields: Mapping[str, Any], interval_seconds: int) -> Predictor:
    """One of the planner's load predictors, new, for one series.

    Args:
        fields: `load_predictor` and its family's fields.
        interval_seconds: Seconds between two values of the series.

    Raises:
        pydantic.ValidationError: if the planner refuses the fields.
    """
    predictors = runtime.load("dynamo.planner.core.load.predictors")
    config = runtime.load(_CONFIG).PlannerConfig.model_validate(
        {
            "optimization_target": "sla",
            "enable_throughput_scaling": True,
            "throughput_adjustment_interval_seconds": interval_seconds,
            **fields,
        }
    )
    return cast("Predictor", predictors.LOAD_PREDICTORS[config.load_predictor](config))


def trace_windows(path: str | Path, interval_seconds: int) -> list[WindowLoad]:
    """A Mooncake trace's arrivals per interval, as the planner would observe them.

    Args:
        path: The trace, one JSON object a line.
        interval_seconds: Length of a window.

    Returns:
        Every window from the first arrival's to the last arrival's, empty ones included.

    Raises:
        ValueError: if a line of the trace is malformed.
    """
    trace_data = runtime.load("dynamo.planner.offline.trace_data")
    return [
        WindowLoad(
            float(window["request_count"]), float(window["avg_isl"]), float(window["avg_osl"])
        )
        for window in trace_data.extract_metrics_from_trace(str(path), interval_seconds)
    ]
