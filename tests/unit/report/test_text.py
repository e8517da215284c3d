"""How figures and deployments are written for people."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.goal import OptimizationTarget
from spica_async.evaluate.fleet import FleetView, WorkerView
from spica_async.report.deployment_text import (
    deployment,
    differing_knobs,
    settings,
    traffic_handling,
)
from spica_async.report.screen import broker_line, concerns, who_works, workers_line
from spica_async.report.units import TARGET_UNITS, figure, margin, objective, seconds

AGG: dict[str, Any] = {
    "deployment_mode": "agg",
    "backend": "vllm",
    "tp": 2,
    "attention_dp": 4,
    "moe_ep": 8,
    "strategy": "mixed",
    "replicas": 3,
    "used_gpus": 24,
    "agg_max_num_seqs": 256,
    "router_mode": "kv_router",
    "router_temperature": 0.2,
    "planner_scaling_policy": "disabled",
}
DISAGG: dict[str, Any] = {
    "deployment_mode": "disagg",
    "backend": "sglang",
    "prefill_tp": 4,
    "prefill_attention_dp": 1,
    "prefill_strategy": "tep",
    "prefill_replicas": 2,
    "decode_tp": 1,
    "decode_attention_dp": 8,
    "decode_strategy": "dep",
    "decode_replicas": 1,
}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.12345, "0.1235"),
        (12.3456, "12.35"),
        (999.9, "999.9"),
        (1000.0, "1,000"),
        (-1234.4, "-1,234"),
        (1234567.0, "1,234,567"),
    ],
)
def test_a_figure_has_four_digits_and_no_decimals_from_a_thousand_on(
    value: float | None, text: str
) -> None:
    assert figure(value) == text


def test_every_scalar_target_has_a_unit() -> None:
    assert set(TARGET_UNITS) == set(OptimizationTarget) - {OptimizationTarget.PARETO}
    assert objective(OptimizationTarget.E2E_LATENCY, 2133.4) == "2,133 ms"
    assert objective(OptimizationTarget.GOODPUT_PER_GPU, 87.71) == "87.71 good tok/s/GPU"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (60.0, "1 min 00 s"),
        (245.4, "4 min 05 s"),
        (3599.4, "59 min 59 s"),
        (3600.0, "1 h 00 min"),
        (7380.0, "2 h 03 min"),
    ],
)
def test_a_duration_is_in_the_units_of_its_size(value: float, text: str) -> None:
    assert seconds(value) == text


def test_a_deployment_is_its_backend_and_each_roles_replicas_of_a_shape() -> None:
    assert deployment(AGG) == "vllm agg 3 x mixed 8"
    assert deployment(DISAGG) == "sglang prefill 2 x tep 4 + decode 1 x dep 8"


def test_traffic_handling_is_the_router_and_a_policy_that_scales() -> None:
    assert traffic_handling(AGG) == "kv_router"
    assert traffic_handling(AGG | {"planner_scaling_policy": "load_180_5"}) == (
        "kv_router, load_180_5"
    )
    own = {
        "enable_throughput_scaling": True,
        "enable_load_scaling": True,
        "throughput_adjustment_interval_seconds": 240,
        "load_adjustment_interval_seconds": 5,
    }
    assert traffic_handling(AGG | {"planner_scaling_policy": own}) == (
        "kv_router, throughput 240 s + load 5 s"
    )
    static = own | {"enable_throughput_scaling": False, "enable_load_scaling": False}
    assert traffic_handling(AGG | {"planner_scaling_policy": static}) == "kv_router"


def test_only_knobs_that_differ_and_are_not_shown_otherwise_are_listed() -> None:
    other = AGG | {
        "tp": 4,
        "replicas": 1,
        "used_gpus": 16,
        "agg_max_num_seqs": 512,
        "enable_load_scaling": True,
        "planner_scaling_policy": "load_180_5",
    }
    assert differing_knobs([AGG, other]) == ["agg_max_num_seqs"]
    assert differing_knobs([AGG, other | {"router_temperature": 1.0}]) == [
        "agg_max_num_seqs",
        "router_temperature",
    ]
    # A knob that only one of them has distinguishes nothing.
    assert differing_knobs([AGG, AGG | {"max_num_fpm_samples": 32}]) == []
    assert differing_knobs([]) == []


def test_settings_are_short_names_with_values() -> None:
    sample = AGG | {"prefill_max_num_batched_tokens": 8192, "decode_max_num_seqs": 4}
    names = (
        *("agg_max_num_seqs", "prefill_max_num_batched_tokens", "decode_max_num_seqs"),
        *("router_temperature", "overlap_score_credit"),
    )
    assert settings(sample, names) == (
        "seqs 256, prefill batched tokens 8192, decode seqs 4, router_temperature 0.2"
    )


def workers(count: int, **changes: Any) -> tuple[WorkerView, ...]:
    view = WorkerView("w", "ready", slots=4, busy=3)
    return tuple(replace(view, name=f"w{number}", **changes) for number in range(count))


def test_workers_are_counted_with_what_keeps_some_of_them_from_working() -> None:
    assert workers_line(FleetView()) == "workers: 0, slots 0"
    assert workers_line(FleetView(workers(3))) == "workers: 3, slots 12"
    mixed = (*workers(1), *workers(2, state="starting"), *workers(1, state="draining"))
    assert workers_line(FleetView(mixed)) == "workers: 4 (1 draining, 2 starting), slots 16"


def test_of_many_workers_some_are_named() -> None:
    assert who_works(workers(1)) == ""
    assert who_works(workers(2)) == "w0 3/4, w1 3/4"
    assert who_works(workers(10)).endswith("w7 3/4, and 2 more")


def test_concerns_are_what_is_waited_for_other_engines_and_troubles() -> None:
    assert concerns(FleetView(workers(1))) == []
    foreign = FleetView(workers(1), foreign=2, differences=("a 1, needed 2", "b 1, needed 2"))
    assert concerns(foreign) == [
        "workers with another engine, which take nothing: 2 (a 1, needed 2; b 1, needed 2)"
    ]
    # The reason for waiting names them already.
    assert concerns(replace(foreign, waiting_for="2 workers have another engine")) == [
        "waiting: 2 workers have another engine"
    ]
    troubled = FleetView(workers(1), troubles=tuple(f"w{n}: no trace" for n in range(5)))
    assert concerns(troubled) == [
        "trouble: w0: no trace",
        "trouble: w1: no trace",
        "trouble: w2: no trace",
        "trouble: and 2 more",
    ]


@pytest.mark.parametrize(
    ("link", "text"),
    [
        (("connected", ""), "broker: connected"),
        (("connecting", "connection refused"), "broker: unreachable (connection refused)"),
        (("connecting", "", 12.0), "broker: unreachable since 12.0 s"),
        (("blocked", "memory alarm", 75.0), "broker: does not take messages since 1 min 15 s"),
    ],
)
def test_how_it_stands_with_the_broker_is_one_line(link: tuple[Any, ...], text: str) -> None:
    assert broker_line(*link).startswith(text)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (5.0, 5.0, ""),
        (5.0, 5.0 + 1e-13, ""),
        (-1.0, 1.0, "1"),
        (9.876, 10.124, "0.12"),
        (1000.0, 1030.8, "15"),
        (1000.0, 4468.0, "1,734"),
    ],
)
def test_a_margin_has_two_digits_and_none_for_rounding(low: float, high: float, text: str) -> None:
    assert margin(low, high) == text
