"""One evaluation: a flat sample under one load, replayed on the CPU, as one flat report.

Runs in a child process that imports Dynamo once and evaluates many requests, one at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from schemas.goal import SLATarget
from schemas.messages import (
    Cause,
    EvaluationRequest,
    Load,
    Measurement,
    Outcome,
    Sample,
    SyntheticLoad,
    TraceLoad,
)
from schemas.search_space import Role
from spica_async.engine import runtime
from spica_async.engine.artifact import make_artifact, packed
from spica_async.engine.config import (
    Arguments,
    planner_arguments,
    roles,
    router_arguments,
    shape_field,
)
from spica_async.engine.launch import normalized_engine
from spica_async.engine.model_files import leave_namesake, packaged_models
from spica_async.engine.refusals import (
    RejectionKind,
    ShapeRejectedError,
    is_unsupported,
    one_line,
)
from spica_async.engine.steady import steady_report

_REPLAY: Final = "dynamo.replay.api"
# What a replay imports only when it meets its first deployment, pandas among it.
_LOADED_LATE: Final = (
    "dynamo.mocker.config",
    "aisimulate.capacity",
    "aisimulate_core.sdk.backends.factory",
    "aisimulate_core.sdk.engine_table_view",
    "aisimulate_core.sdk.memory.kv_cache",
)
# Behind the first is what a replay imports only when it meets its first planner.
_PLANNER: Final = (
    "dynamo.planner.offline.replay_adapter",
    "dynamo.planner.offline.trace_data",
    "dynamo.replay.planner",
)
# How fast this machine replayed, not what was replayed: two replays of one sample differ in it.
_WALL_CLOCK_KEYS: Final = frozenset(
    {"wall_time_ms", "processed_tokens_per_s", "processed_output_tokens_per_s"}
)
_REJECTED: Final[Mapping[RejectionKind, tuple[Outcome, Cause]]] = {
    "no_kv_room": ("infeasible", "no_kv_room"),
    "indivisible": ("failed", "build_error"),
    "no_performance_data": ("failed", "build_error"),
    "unsupported": ("unsupported", "engine_unsupported"),
}
# Candidates that differ in none of these read the same files and libraries.
_SHARED: Final = (
    *("model_name", "hardware_sku", "backend", "deployment_mode", "router_mode"),
    *("enable_throughput_scaling", "enable_load_scaling"),
)
_TINY_LOAD: Final = SyntheticLoad(isl=64, osl=2, requests=1, concurrency=1)
# The planner starts from the engine's performance data, or its target needs none.
_SEEDED: Final = frozenset({"installed", "not_required"})
# Shows whether the whole load was served.
_SERVED_KEYS: Final = frozenset(
    {"num_requests", "completed_requests", "total_input_tokens", "total_output_tokens"}
)
_ENGINE_ARGUMENTS: Final[Mapping[Role, tuple[str, str]]] = {
    "agg": ("extra_engine_args", "num_workers"),
    "prefill": ("prefill_engine_args", "num_prefill_workers"),
    "decode": ("decode_engine_args", "num_decode_workers"),
}


def warm_up() -> Callable[[EvaluationRequest], None]:
    """Import the replay, so that no evaluation pays for it.

    Returns:
        What to call with each request before its time begins.
    """
    _load(_REPLAY, *_LOADED_LATE)
    return SetUp()


def warm_up_with_planner() -> Callable[[EvaluationRequest], None]:
    """Import the planner as well, whose libraries take far longer than all the rest."""
    set_up = warm_up()
    _load(*_PLANNER)
    return set_up


class SetUp:
    """Reads what the engine reads once for all candidates of a kind, half a second's to seconds'.

    That is the model's configuration and the performance tables of a backend on a system, which are
    prepared first where nobody has done so. A planner's libraries and tables are read when it is
    replayed; a plain replay reads no more than its arguments do.
    """

    def __init__(self) -> None:
        self._done: set[tuple[object, ...]] = set()

    def __call__(self, request: EvaluationRequest) -> None:
        """Have everything read that the request's candidate shares with others.

        Raises:
            BaseException: what an evaluation meets as well, and describes better.
        """
        if _misnamed_model(request) is not None:
            return
        sample = request.sample
        kind = tuple(sample.get(name) for name in _SHARED)
        if kind in self._done:
            return
        arguments = replay_arguments(sample, request.sla)
        if arguments["planner_config"] is not None:
            replay(_TINY_LOAD, arguments)
        self._done.add(kind)


def _load(*names: str) -> None:
    for name in names:
        runtime.load(name)


def evaluate(request: EvaluationRequest, *, prepared: bool = True) -> Measurement:
    """Replay a request's sample under its load. Faults come back as outcomes, not as errors.

    Args:
        request: What to replay.
        prepared: Whether to read prepared performance tables rather than the engine's own, which
            takes twice as long and measures the same.
    """
    started = time.perf_counter()
    problem = _misnamed_model(request)
    if problem is not None:
        return Measurement.failed("model_unavailable", problem)
    try:
        arguments = replay_arguments(request.sample, request.sla, prepared=prepared)
    except ShapeRejectedError as error:
        outcome, cause = _REJECTED[error.kind]
        return Measurement(
            outcome=outcome,
            cause=cause,
            detail=error.reason,
            build_seconds=time.perf_counter() - started,
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this sample's outcome
        return _failed("build_error", error, time.perf_counter() - started)
    built = time.perf_counter()
    build_seconds = built - started
    capture = request.capture_interval_ms
    try:
        result = run_replay(request.load, arguments, capture_interval_ms=capture)
        report = report_of(result, request.load, request.sla)
    except BaseException as error:
        if not runtime.is_fault(error):
            raise
        return _failed("replay_error", error, build_seconds, time.perf_counter() - built)
    replay_seconds = time.perf_counter() - built
    fault = _fault(report, request.load)
    if fault is None:
        return Measurement(
            outcome="feasible",
            report=report,
            build_seconds=build_seconds,
            replay_seconds=replay_seconds,
            artifact=None if capture is None else _artifact(result),
        )
    outcome, cause, detail = fault
    return Measurement(
        outcome=outcome,
        cause=cause,
        detail=detail,
        build_seconds=build_seconds,
        replay_seconds=replay_seconds,
    )


def _misnamed_model(request: EvaluationRequest) -> str | None:
    """Why the engine cannot know which model is meant; None once it can mean no other."""
    if request.model is not None:
        return None
    model = str(request.sample.get("model_name"))
    if model not in packaged_models():
        return (
            f"{model} is no model that ships with the engine, and the request does not bring"
            " its files: its sender may be of an older version"
        )
    leave_namesake(model)
    return None


def replay_arguments(sample: Sample, sla: SLATarget | None, *, prepared: bool = True) -> Arguments:
    """The keywords that a replay of `sample` takes, whatever its load.

    Args:
        sample: The deployment.
        sla: What the planner holds and goodput counts, if anything.
        prepared: As `evaluate`.

    Raises:
        ShapeRejectedError: if a role's shape cannot be run.
        KeyError: if the sample lacks a field.
        ValueError: if the engine, the router or the planner refuses a value.
    """
    arguments: Arguments = {
        "router_mode": sample["router_mode"],
        "planner_config": planner_arguments(sample, sla),
        "capture_per_request": False,
        "capture_planner_details": False,
    }
    for role in roles(sample):
        engine_name, count_name = _ENGINE_ARGUMENTS[role]
        arguments[engine_name] = normalized_engine(sample, role, prepared=prepared)
        arguments[count_name] = shape_field(sample, role, "replicas")
    router = router_arguments(sample)
    if router is not None:
        arguments["router_config"] = runtime.load("dynamo.llm").KvRouterConfig(**router)
    if sla is not None:
        arguments |= {
            "sla_ttft_ms": sla.ttft_ms,
            "sla_itl_ms": sla.itl_ms,
            "sla_e2e_ms": sla.e2e_ms,
        }
    return arguments


def replay(load: Load, arguments: Arguments) -> dict[str, float]:
    """Replay `load` and flatten the report, finite or not; what the replay raises propagates."""
    return report_of(run_replay(load, arguments), load)


def run_replay(
    load: Load, arguments: Arguments, *, capture_interval_ms: float | None = None
) -> Any:  # an untyped library's
    """Replay `load`; what the replay raises propagates.

    Args:
        load: What to replay.
        arguments: See `replay_arguments`.
        capture_interval_ms: Between two samples of the telemetry; with None none is captured.

    Returns:
        The engine's `ReplayReport`.
    """
    api = runtime.load(_REPLAY)
    if capture_interval_ms is not None:
        arguments = arguments | {
            "capture_per_request": True,
            "capture_planner_details": True,
            "telemetry_options": api.TelemetryOptions(sample_interval_ms=capture_interval_ms),
        }
    elif _is_steady(load):
        arguments = arguments | {"capture_per_request": True}
    if arguments["planner_config"] is not None:
        _load(*_PLANNER)
    if isinstance(load, TraceLoad):
        return api.run_trace_replay(load.path, **_trace_arguments(load), **arguments)
    return api.run_synthetic_trace_replay(
        load.isl, load.osl, load.requests, **_synthetic_arguments(load), **arguments
    )


def report_of(
    result: Any,  # an untyped library's
    load: Load,
    sla: SLATarget | None = None,
) -> dict[str, float]:
    """The flat report of a replay.

    Args:
        result: See `run_replay`.
        load: What was replayed.
        sla: What goodput is counted by in the steady part of a load, if anything.

    Raises:
        RuntimeError: The planner did not do what it was asked for.
    """
    report = dict(flatten(result.summary))
    if isinstance(load, SyntheticLoad) and _is_steady(load):
        report = steady_report(report, result.per_request, load, sla)
    if result.planner is not None:
        seeding = result.planner.metadata["bootstrap"]["status"]
        if seeding not in _SEEDED:
            # It then scales by load alone, whatever was asked of it, and merely logs that.
            raise RuntimeError(f"the planner found no performance data to start from: {seeding}")
        report["planner_total_ticks"] = float(result.planner.total_ticks)
    return report


def _artifact(result: Any) -> str | None:  # an untyped library's
    """What a captured replay leaves behind."""
    planner, summary = result.planner, result.summary
    artifact = make_artifact(
        result.per_request,
        result.telemetry.samples,
        [] if planner is None else planner.to_dict()["scaling_events"],
        {role: summary[f"{role}_gpus_per_worker"] for role in ("prefill", "decode")},
    )
    return packed(artifact)


def _is_steady(load: Load) -> bool:
    return isinstance(load, SyntheticLoad) and load.window == "steady"


def flatten(summary: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """The numbers of a nested report under dotted keys; flags, texts and gaps are left out."""
    for name, value in summary.items():
        key = f"{prefix}{name}"
        if key in _WALL_CLOCK_KEYS or isinstance(value, bool):
            continue
        if isinstance(value, Mapping):
            yield from flatten(value, f"{key}.")
        elif isinstance(value, int | float):
            yield key, float(value)


def _trace_arguments(load: TraceLoad) -> Arguments:
    return {
        "trace_format": load.trace_format,
        "trace_block_size": load.block_size,
        "arrival_speedup_ratio": load.arrival_speedup_ratio,
        "replay_concurrency": load.concurrency,
    }


def _synthetic_arguments(load: SyntheticLoad) -> Arguments:
    arguments: Arguments = {
        "replay_concurrency": load.concurrency,
        "turns_per_session": load.turns_per_session,
        "inter_turn_delay_ms": load.inter_turn_delay_ms,
        "shared_prefix_ratio": load.shared_prefix_ratio,
        "num_prefix_groups": load.num_prefix_groups,
    }
    if load.request_rate is not None:
        arguments["arrival_interval_ms"] = 1000 / load.request_rate
    return arguments


def _fault(report: dict[str, float], load: Load) -> tuple[Outcome, Cause, str] | None:
    """Why a finished replay's report cannot be compared with others; None if it can.

    The engine drops a request whose input a rank's KV cache or the context length cannot hold,
    and cuts an output short at the context length. It averages over what is left: the more it
    drops, the better a candidate would look.
    """
    bad = sorted(key for key, value in report.items() if not math.isfinite(value))
    if bad:
        return "failed", "report_not_finite", f"not finite in the report: {', '.join(bad)}"
    absent = sorted(_SERVED_KEYS - report.keys())
    if absent:
        return "failed", "report_incomplete", f"not in the report: {', '.join(absent)}"
    requests, completed = report["num_requests"], report["completed_requests"]
    if completed < requests:
        detail = (
            f"{requests - completed:.0f} of {requests:.0f} requests are longer than the KV cache "
            "of a rank or the context length"
        )
        return "infeasible", "no_kv_room", detail
    missing = load.total_tokens - (report["total_input_tokens"] + report["total_output_tokens"])
    if missing > 0:
        detail = f"{missing:.0f} output tokens do not fit into the context length"
        return "infeasible", "no_kv_room", detail
    return None


def _failed(
    cause: Cause, error: BaseException, build_seconds: float, replay_seconds: float = 0.0
) -> Measurement:
    """The measurement of a build or a replay that raised `error`."""
    unsupported = is_unsupported(error)
    return Measurement(
        outcome="unsupported" if unsupported else "failed",
        cause="engine_unsupported" if unsupported else cause,
        detail=f"{type(error).__name__}: {one_line(error)}",
        build_seconds=build_seconds,
        replay_seconds=replay_seconds,
    )
