"""What the terminal shows of what candidates are held against."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from rich.console import Console

from schemas.goal import OptimizationGoal, OptimizationTarget
from schemas.results import Gain, SweepResult, SweepTimings, Tally
from spica_async.judge.ranking import entry_of, ranking
from spica_async.judge.scoring import Candidate, make_candidate
from spica_async.report.tables import gain_text, result_view

THROUGHPUT = OptimizationGoal(target=OptimizationTarget.THROUGHPUT)
FRONT = OptimizationGoal(
    target=OptimizationTarget.PARETO,
    pareto_objectives=[OptimizationTarget.THROUGHPUT, OptimizationTarget.E2E_LATENCY],
)


def candidate(
    name: str, values: Sequence[float], goal: OptimizationGoal, *, latency: float = 100.0
) -> Candidate:
    return make_candidate(
        candidate_id=name,
        branch="agg",
        number=0,
        sample={
            "deployment_mode": "agg",
            "backend": "vllm",
            "tp": 1,
            "attention_dp": 1,
            "strategy": "tp",
            "replicas": 1,
            "used_gpus": 1,
            "router_mode": "round_robin" if len(values) == 1 else "kv_router",
            "planner_scaling_policy": "disabled",
        },
        reports=[
            {"output_throughput_tok_s": value, "mean_e2e_latency_ms": latency} for value in values
        ],
        goal=goal,
        facts={},
    )


def shown(
    found: Sequence[Candidate],
    goal: OptimizationGoal,
    baseline: Candidate | None = None,
    problem: str | None = None,
) -> str:
    timings = dict.fromkeys(SweepTimings.model_fields, 0.0)
    result = SweepResult(
        sweep_id="sweep",
        status="completed",
        reason="",
        ranking=ranking(found, goal, baseline=baseline),
        baseline=None if baseline is None else entry_of(baseline, goal),
        baseline_problem=problem,
        tally=Tally(),
        timings=SweepTimings(**timings),
        branches=[],
        results_dir="",
        seed=1,
        versions={},
    )
    console = Console(width=300)
    with console.capture() as captured:
        console.print(result_view(result, goal))
    return captured.get()


@pytest.mark.parametrize(
    ("gain", "text"),
    [
        (None, "-"),
        (Gain(percent=48.04), "+48.0 %"),
        (Gain(percent=-3.2, margin=0.0), "-3.2 %"),
        (Gain(percent=0.0, margin=1e-12), "+0.0 %"),
        (Gain(percent=48.0, margin=2.14), "+48.0 ± 2.1 %"),
    ],
)
def test_a_gain_has_its_sign_and_its_margin(gain: Gain | None, text: str) -> None:
    assert gain_text(gain) == text


def test_the_baseline_has_a_row_and_each_candidate_its_gain() -> None:
    found = [candidate("a", [15.0], THROUGHPUT), candidate("b", [12.0], THROUGHPUT)]
    text = shown(found, THROUGHPUT, candidate("base", [10.0], THROUGHPUT))
    assert "against the baseline" in text
    assert "+50.0 %" in text
    assert "+20.0 %" in text
    assert "baseline │" in text
    assert "warning" not in text
    assert "baseline" not in shown(found, THROUGHPUT)


@pytest.mark.parametrize("best", [[9.0], [9.0, 10.0, 11.0, 12.0]])
def test_a_best_that_does_not_clear_the_noise_is_warned_of(best: list[float]) -> None:
    text = shown([candidate("a", best, THROUGHPUT)], THROUGHPUT, candidate("b", [10], THROUGHPUT))
    assert "warning: nothing is better than the baseline, or not by more than the noise" in text


def test_a_baseline_that_could_not_be_measured_is_named() -> None:
    text = shown([candidate("a", [1.0], THROUGHPUT)], THROUGHPUT, problem="failed: it broke")
    assert "warning: there is no baseline: failed: it broke" in text


def test_a_front_shows_where_the_baseline_lies() -> None:
    front = [candidate("a", [15.0], FRONT, latency=90), candidate("b", [9.0], FRONT, latency=50)]
    text = shown(front, FRONT, candidate("base", [10.0], FRONT))
    assert "the baseline lies behind 1 of the front" in text
    assert "+10.0 %" in text
    assert "-10.0 %" in text
    beyond = shown(front, FRONT, candidate("base", [20.0], FRONT, latency=10))
    assert "the baseline lies on the front, or before it" in beyond
