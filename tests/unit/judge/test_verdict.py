"""What a measurement comes to: a verdict, and what the study observes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from schemas.config import SmartSearchConfig
from schemas.messages import Measurement
from spica_async.judge.verdict import (
    SCALAR_OBJECTIVE,
    Judged,
    Verdict,
    judge,
    metrics_for_sampler,
    refuse,
    study_objectives,
)
from spica_async.optimizer.types import Objective

LATENCY = {"target": "e2e_latency"}
PARETO = {"target": "pareto", "pareto_objectives": ["throughput", "e2e_latency"]}


@pytest.fixture
def judge_report(make_config: Callable[..., SmartSearchConfig]) -> Callable[..., Judged]:
    def judge_under(
        measurement: Measurement, goal: dict[str, Any] = LATENCY, used_gpus: int = 4
    ) -> Judged:
        return judge(
            [measurement],
            config=make_config({"gpu_budget": 4}, goal=goal),
            candidate_id="s-agg-0",
            branch="agg",
            number=0,
            sample={"used_gpus": used_gpus},
            facts={"needs_wide_ep": False},
        )

    return judge_under


def feasible(**report: float) -> Measurement:
    return Measurement(outcome="feasible", report=report)


def test_a_sound_report_makes_a_candidate(judge_report: Callable[..., Judged]) -> None:
    judged = judge_report(feasible(mean_e2e_latency_ms=20.0))
    assert judged.verdict == Verdict("feasible")
    assert judged.candidate is not None
    assert (judged.candidate.score, judged.candidate.used_gpus) == (-20.0, 4)
    assert judged.candidate.facts == {"needs_wide_ep": False}


def test_a_throughput_of_zero_is_feasible(judge_report: Callable[..., Judged]) -> None:
    goal = {"target": "goodput", "sla": {"e2e_ms": 1.0}}
    judged = judge_report(feasible(goodput_output_throughput_tok_s=0.0), goal)
    assert judged.verdict.outcome == "feasible"
    assert judged.candidate is not None
    assert judged.candidate.score == 0.0


@pytest.mark.parametrize(
    ("measurement", "verdict"),
    [
        (
            feasible(output_throughput_tok_s=1.0),
            Verdict("failed", "report_incomplete", "missing: mean_e2e_latency_ms"),
        ),
        (
            Measurement(outcome="feasible"),
            Verdict("failed", "report_incomplete", "missing: mean_e2e_latency_ms"),
        ),
        (
            Measurement.model_construct(
                outcome="feasible",
                report={"mean_e2e_latency_ms": 1.0, "other": float("nan")},
            ),
            Verdict("failed", "report_not_finite", "not finite: other"),
        ),
        (
            Measurement(outcome="failed", cause="time_limit", detail="after 5 s"),
            Verdict("failed", "time_limit", "after 5 s"),
        ),
        (
            Measurement(
                outcome="unsupported",
                cause="engine_unsupported",
                detail="no",
                report={"mean_e2e_latency_ms": 1.0},
            ),
            Verdict("unsupported", "engine_unsupported", "no"),
        ),
        (
            Measurement(outcome="infeasible", cause="no_kv_room"),
            Verdict("infeasible", "no_kv_room"),
        ),
    ],
)
def test_anything_else_makes_none(
    judge_report: Callable[..., Judged], measurement: Measurement, verdict: Verdict
) -> None:
    assert judge_report(measurement) == Judged(verdict)


def test_failures_are_one_and_the_same_if_all_that_is_said_of_them_is() -> None:
    failure = Verdict("failed", "replay_error", "it broke")
    assert failure.signature == Verdict("failed", "replay_error", "it broke").signature
    others = [
        Verdict("infeasible", "replay_error", "it broke"),
        Verdict("failed", "time_limit", "it broke"),
        Verdict("failed", "replay_error", "it broke at 7"),
        Verdict("failed", "replay_error"),
    ]
    assert failure.signature not in {other.signature for other in others}
    assert others[-1].signature == Verdict("failed", "replay_error", "").signature


def test_what_is_over_the_budget_is_no_candidate(judge_report: Callable[..., Judged]) -> None:
    judged = judge_report(feasible(mean_e2e_latency_ms=20.0), used_gpus=5)
    assert judged == Judged(Verdict("infeasible", "over_budget", "uses 5 GPUs of 4"))


def test_a_refusal_is_infeasible() -> None:
    assert refuse("no_kv_room", "why") == Judged(Verdict("infeasible", "no_kv_room", "why"))


def test_a_scalar_goal_is_one_maximised_metric_already_signed(
    make_config: Callable[..., SmartSearchConfig], judge_report: Callable[..., Judged]
) -> None:
    goal = make_config(goal=LATENCY).goal
    assert study_objectives(goal) == (SCALAR_OBJECTIVE,) == (Objective("objective", maximize=True),)
    candidate = judge_report(feasible(mean_e2e_latency_ms=20.0)).candidate
    assert metrics_for_sampler(candidate, goal) == {"objective": -20.0}
    assert metrics_for_sampler(None, goal) is None


def test_a_pareto_goal_is_a_metric_per_objective_in_its_own_direction(
    make_config: Callable[..., SmartSearchConfig], judge_report: Callable[..., Judged]
) -> None:
    goal = make_config(goal=PARETO).goal
    assert study_objectives(goal) == (
        Objective("throughput", maximize=True),
        Objective("e2e_latency", maximize=False),
    )
    report = feasible(mean_e2e_latency_ms=20.0, output_throughput_tok_s=7.0)
    candidate = judge_report(report, PARETO).candidate
    assert metrics_for_sampler(candidate, goal) == {"throughput": 7.0, "e2e_latency": 20.0}
    assert metrics_for_sampler(None, goal) is None
