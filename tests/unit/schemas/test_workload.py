"""The four shapes of a workload, and what each of them refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from schemas.config import SmartSearchConfig
from schemas.workload import WINDOW, Workload

LENGTHS = {"isl": 1000, "osl": 100, "num_request_ratio": 2.0}
TRACE = {"trace_path": "/traces/a.jsonl"}
PARETO = {"target": "pareto"}
LOADS = "request_rate, concurrency, kv_load_ratio"
ONE_ONLY = f"set only one of {LOADS}"
BAD_RATIO = "a number >= 0, or [min, max]"
BAD_RANGE = "a range is [min, max] with min < max"


@pytest.mark.parametrize(
    ("workload", "load_field", "is_trace"),
    [
        (TRACE, None, True),
        ({**TRACE, "arrival_speedup_ratio": 2.5}, None, True),
        ({**TRACE, "replay_concurrency": 32, "trace_format": "mooncake"}, None, True),
        ({**LENGTHS, "request_rate": 0.5}, "request_rate", False),
        ({**LENGTHS, "concurrency": 1}, "concurrency", False),
        ({**LENGTHS, "kv_load_ratio": 0}, "kv_load_ratio", False),
        (
            {
                **LENGTHS,
                "concurrency": 8,
                "turns_per_session": 2,
                "inter_turn_delay_ms": 10.0,
                "shared_prefix_ratio": 1,
                "num_prefix_groups": 3,
            },
            "concurrency",
            False,
        ),
    ],
    ids=str,
)
def test_a_workload_has_one_shape(
    load_blocks: Callable[..., SmartSearchConfig],
    workload: dict[str, Any],
    load_field: str | None,
    is_trace: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    found = load_blocks(workload=workload).workload
    assert found.load_field == load_field
    assert found.is_trace is is_trace
    assert found.model_fields_set - {"window"} == set(workload)


@pytest.mark.parametrize(
    ("ratio", "goal", "kv_load"),
    [
        (0.0, {}, 0.0),
        (1.5, {}, 1.5),
        (1, PARETO, 1.0),
        ([0.25, 0.75], PARETO, (0.25, 0.75)),
        ([0, 3], PARETO, (0.0, 3.0)),
    ],
    ids=str,
)
def test_a_kv_load_is_one_ratio_or_under_pareto_a_range(
    load_blocks: Callable[..., SmartSearchConfig],
    ratio: Any,
    goal: dict[str, Any],
    kv_load: float | tuple[float, float],
) -> None:
    config = load_blocks(workload={**LENGTHS, "kv_load_ratio": ratio}, goal=goal)
    assert config.kv_load == kv_load
    assert config.workload.kv_load_range == (kv_load if isinstance(kv_load, tuple) else None)


def test_a_synthetic_pareto_workload_sweeps_the_whole_capacity_by_default(
    load_blocks: Callable[..., SmartSearchConfig],
) -> None:
    assert load_blocks(workload=LENGTHS, goal=PARETO).kv_load == (0.0, 1.0)
    assert load_blocks(workload={**LENGTHS, "concurrency": 3}, goal=PARETO).kv_load is None
    assert load_blocks(workload={**LENGTHS, "request_rate": 3}, goal=PARETO).kv_load is None
    assert load_blocks(workload=TRACE, goal=PARETO).kv_load is None


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (-0.1, "finite and >= 0"),
        (math.nan, "finite and >= 0"),
        (math.inf, "finite and >= 0"),
        ([0.0, math.inf], "finite and >= 0"),
        ([-1.0, 1.0], "finite and >= 0"),
        ([math.nan, 1.0], "finite and >= 0"),
        (True, BAD_RATIO),
        ([False, 1.0], BAD_RATIO),
        ("0.5", BAD_RATIO),
        ({"min": 0}, BAD_RATIO),
        ([], BAD_RANGE),
        ([0.5], BAD_RANGE),
        ([0.5, 0.5], BAD_RANGE),
        ([0.6, 0.5], BAD_RANGE),
        ([0.1, 0.2, 0.3], BAD_RANGE),
    ],
    ids=str,
)
def test_a_kv_load_is_finite_not_negative_and_ascending(
    problem_of: Callable[..., str], ratio: object, expected: str
) -> None:
    found = problem_of(workload={**LENGTHS, "kv_load_ratio": ratio}, goal=PARETO)
    assert found == f"workload.kv_load_ratio: {expected}"


def test_a_load_that_is_null_is_none(load_blocks: Callable[..., SmartSearchConfig]) -> None:
    config = load_blocks(workload={**LENGTHS, "concurrency": 3, "kv_load_ratio": None})
    assert (config.workload.load_field, config.kv_load) == ("concurrency", None)


def test_a_range_of_kv_loads_needs_a_pareto_goal(problem_of: Callable[..., str]) -> None:
    found = problem_of(
        workload={**LENGTHS, "kv_load_ratio": [0.0, 1.0]}, goal={"target": "e2e_latency"}
    )
    assert found == (
        "workload.kv_load_ratio: a range needs goal.target: pareto; "
        "under e2e_latency give one number"
    )


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        (LENGTHS, f"request_rate: set one of {LOADS}"),
        (
            {**LENGTHS, "concurrency": 3, "request_rate": 1.0},
            f"concurrency: {ONE_ONLY}",
        ),
        (
            {**LENGTHS, "concurrency": 3, "kv_load_ratio": 1.0},
            f"kv_load_ratio: {ONE_ONLY}",
        ),
        *(
            (
                {"concurrency": 3, **{k: v for k, v in LENGTHS.items() if k != missing}},
                (
                    f"{missing}: required: a workload is a trace_path, or isl, osl, "
                    f"num_request_ratio and one of {LOADS}"
                ),
            )
            for missing in LENGTHS
        ),
        *(
            ({**TRACE, name: value}, f"{name}: not with trace_path, which brings its own requests")
            for name, value in {
                **LENGTHS,
                "request_rate": 1.0,
                "concurrency": 3,
                "kv_load_ratio": 0.5,
                "shared_prefix_ratio": 0.0,
                "num_prefix_groups": 1,
                "turns_per_session": 1,
                "inter_turn_delay_ms": 1.0,
            }.items()
        ),
        *(
            ({**LENGTHS, "concurrency": 3, name: value}, f"{name}: only with trace_path")
            for name, value in {
                "trace_format": "mooncake",
                "arrival_speedup_ratio": 2.0,
                "replay_concurrency": 3,
            }.items()
        ),
        (
            {**LENGTHS, "concurrency": 3, "inter_turn_delay_ms": 1.0},
            "inter_turn_delay_ms: no effect with turns_per_session 1",
        ),
        (
            {**LENGTHS, "request_rate": 3.0, "window": "steady"},
            "window: steady has no effect with request_rate, an open load",
        ),
        (
            {**LENGTHS, "concurrency": 3, "turns_per_session": 2, "window": "steady"},
            "window: steady has no effect with turns_per_session over 1",
        ),
        (
            {**TRACE, "window": "whole"},
            "window: not with trace_path, which brings its own requests",
        ),
        (
            {**LENGTHS, "concurrency": 3, "shared_prefix_ratio": 0.5},
            "shared_prefix_ratio: no effect while num_prefix_groups is 0",
        ),
        (
            {**LENGTHS, "concurrency": 3, "num_prefix_groups": 2},
            "num_prefix_groups: no effect while shared_prefix_ratio is 0",
        ),
        ({**TRACE, "trace_format": "csv"}, "trace_format: input should be 'mooncake', not 'csv'"),
        ({"trace_path": 3}, "trace_path: input is not a valid path for "),
    ],
    ids=str,
)
def test_a_mixture_of_shapes_is_refused(
    problem_of: Callable[..., str], workload: dict[str, Any], expected: str
) -> None:
    assert problem_of(workload=workload).startswith(f"workload.{expected}")


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        *((name, bad) for name in ("isl", "osl", "concurrency") for bad in (0, -1, True, 1.5)),
        ("request_rate", 0),
        ("request_rate", math.nan),
        ("request_rate", -1.0),
        ("num_request_ratio", 0.0),
        ("num_request_ratio", math.inf),
        ("shared_prefix_ratio", 1.01),
        ("shared_prefix_ratio", -0.01),
        ("num_prefix_groups", -1),
        ("turns_per_session", 0),
        ("inter_turn_delay_ms", -1.0),
    ],
)
def test_a_workloads_numbers_are_in_range(
    problem_of: Callable[..., str], field: str, bad: object
) -> None:
    load = {} if field == "request_rate" else {"concurrency": 3}
    found = problem_of(workload={**LENGTHS, **load, field: bad})
    assert found.startswith(f"workload.{field}: input should be ")
    assert found.endswith(f", not {bad!r}")


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("arrival_speedup_ratio", 0.0),
        ("arrival_speedup_ratio", math.inf),
        ("replay_concurrency", 0),
    ],
)
def test_a_traces_numbers_are_in_range(
    problem_of: Callable[..., str], field: str, bad: object
) -> None:
    found = problem_of(workload={**TRACE, field: bad})
    assert found.startswith(f"workload.{field}: input should be ")


@pytest.mark.parametrize(
    ("workload", "window"),
    [
        ({**LENGTHS, "concurrency": 4}, "steady"),
        ({**LENGTHS, "kv_load_ratio": 0.5}, "steady"),
        ({**LENGTHS, "concurrency": 4, "window": "whole"}, "whole"),
        ({**LENGTHS, "concurrency": 4, "turns_per_session": 2}, "whole"),
        ({**LENGTHS, "request_rate": 4.0}, "whole"),
        (TRACE, None),
    ],
    ids=str,
)
def test_a_closed_load_is_measured_where_it_is_steady(
    load_blocks: Callable[..., SmartSearchConfig], workload: dict[str, Any], window: str | None
) -> None:
    assert load_blocks(workload=workload).workload.window == window


def test_what_an_older_version_has_begun_is_measured_as_a_whole() -> None:
    old = Workload.model_validate({**LENGTHS, "concurrency": 4}, context={WINDOW: "whole"})
    assert old.window == "whole"
    written = {**LENGTHS, "concurrency": 4, "window": "steady"}
    assert Workload.model_validate(written, context={WINDOW: "whole"}).window == "steady"
