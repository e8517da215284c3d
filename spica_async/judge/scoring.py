"""From a replay's report to a candidate, and from candidates to a ranking or a Pareto front."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import moocore
import numpy as np
from pydantic import JsonValue

from schemas.goal import OptimizationGoal, OptimizationTarget
from schemas.messages import Cause, Sample

Report = Mapping[str, float]

_MS_PER_HOUR: Final = 3_600_000.0
_GPU_KEYS: Final = ("gpu_hours", "duration_ms")
_METRIC_KEYS: Final[Mapping[OptimizationTarget, str]] = MappingProxyType(
    {
        OptimizationTarget.THROUGHPUT: "output_throughput_tok_s",
        OptimizationTarget.THROUGHPUT_PER_GPU: "output_throughput_tok_s",
        OptimizationTarget.THROUGHPUT_PER_USER: "mean_output_token_throughput_per_user",
        OptimizationTarget.E2E_LATENCY: "mean_e2e_latency_ms",
        OptimizationTarget.GOODPUT: "goodput_output_throughput_tok_s",
        OptimizationTarget.GOODPUT_PER_GPU: "goodput_output_throughput_tok_s",
    }
)
_PER_GPU: Final = frozenset(
    {OptimizationTarget.THROUGHPUT_PER_GPU, OptimizationTarget.GOODPUT_PER_GPU}
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One deployment that was measured.

    Attributes:
        candidate_id: the evaluation's id.
        branch: the deployment mode that it was found in.
        number: its place among the branch's suggestions.
        sample: the flat deployment.
        report: what the replay measured.
        objectives: the raw value of each objective, by target.
        score: the signed value of the first objective, higher is better; raw under a Pareto goal.
        used_gpus: GPUs that the deployment starts with.
        facts: what was known of it before the replay.
    """

    candidate_id: str
    branch: str
    number: int
    sample: Sample
    report: Report
    objectives: Mapping[OptimizationTarget, float]
    score: float
    used_gpus: int
    facts: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def named_objectives(self) -> dict[str, float]:
        """Its objectives by the names of their targets."""
        return {target.value: value for target, value in self.objectives.items()}


def objective_value(report: Report, target: OptimizationTarget) -> float:
    """The raw value of one objective; an absent key reads as the worst there is.

    Raises:
        ValueError: for `PARETO`, which is no objective of its own.
    """
    if target is OptimizationTarget.PARETO:
        raise ValueError("pareto is several objectives: ask for each of them")
    if target is OptimizationTarget.E2E_LATENCY:
        return report.get(_METRIC_KEYS[target], math.inf)
    rate = report.get(_METRIC_KEYS[target], 0.0)
    if target not in _PER_GPU:
        return rate
    gpus = average_gpus(report)
    return rate / gpus if gpus > 0 else 0.0


def average_gpus(report: Report) -> float:
    """Provisioned GPUs averaged over the run: `gpu_hours / (duration_ms / 3_600_000)`.

    0.0 where either is absent or not positive.
    """
    gpu_hours = report.get("gpu_hours", 0.0)
    hours = report.get("duration_ms", 0.0) / _MS_PER_HOUR
    return gpu_hours / hours if gpu_hours > 0 and hours > 0 else 0.0


def report_problem(
    report: Report, objectives: Collection[OptimizationTarget]
) -> tuple[Cause, str] | None:
    """Why a report must not be scored for these objectives, or None.

    A key that an objective reads must be there, and every number must be finite; 0.0 is a number.
    """
    unsound = sorted(key for key, value in report.items() if not math.isfinite(value))
    if unsound:
        return "report_not_finite", f"not finite: {', '.join(unsound)}"
    needed = {
        key
        for target in objectives
        for key in (_METRIC_KEYS[target], *(_GPU_KEYS if target in _PER_GPU else ()))
    }
    missing = sorted(needed - report.keys())
    if missing:
        return "report_incomplete", f"missing: {', '.join(missing)}"
    beyond = [t.value for t in objectives if not math.isfinite(objective_value(report, t))]
    if beyond:
        return "report_not_finite", f"no finite number: {', '.join(beyond)}"
    return None


def score_report(report: Report, goal: OptimizationGoal) -> float:
    """The headline number: signed so that more is better, raw under a Pareto goal."""
    value = objective_value(report, goal.objectives[0])
    if goal.is_pareto or goal.target.maximize:
        return value
    return -value


def is_feasible(used_gpus: int, gpu_budget: int) -> bool:
    """Whether a deployment is within the budget. The SLA is part of goodput, not of this."""
    return used_gpus <= gpu_budget


def make_candidate(
    *,
    candidate_id: str,
    branch: str,
    number: int,
    sample: Sample,
    report: Report,
    goal: OptimizationGoal,
    facts: Mapping[str, JsonValue],
) -> Candidate:
    """Score one report under the goal."""
    used_gpus = sample["used_gpus"]
    assert isinstance(used_gpus, int)  # noqa: S101  # written by unroll_sample
    return Candidate(
        candidate_id=candidate_id,
        branch=branch,
        number=number,
        sample=sample,
        report=report,
        objectives={target: objective_value(report, target) for target in goal.objectives},
        score=score_report(report, goal),
        used_gpus=used_gpus,
        facts=facts,
    )


def rank(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Best score first; ties go to fewer GPUs, then to the earlier suggestion of a branch."""
    return sorted(candidates, key=lambda c: (-c.score, c.used_gpus, c.branch, c.number))


def pareto_front(
    candidates: Iterable[Candidate], objectives: Sequence[OptimizationTarget]
) -> list[Candidate]:
    """The candidates that no other dominates, ascending by the last objective (the x-axis)."""
    listed = list(candidates)
    points = np.array([[one.objectives[axis] for axis in objectives] for one in listed])
    kept = moocore.is_nondominated(
        points.reshape(len(listed), len(objectives)),
        maximise=[axis.maximize for axis in objectives],
        keep_weakly=True,
    )
    front = itertools.compress(listed, kept)
    axes = list(reversed(objectives))
    return sorted(
        front,
        key=lambda c: ([c.objectives[axis] for axis in axes], c.used_gpus, c.branch, c.number),
    )
