"""From a worker's measurement to a verdict: what counts, and what the optimizer observes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from schemas.config import SmartSearchConfig
from schemas.goal import OptimizationGoal
from schemas.messages import Cause, Measurement, Outcome, Sample
from spica_async.judge.scoring import (
    Candidate,
    is_feasible,
    make_candidate,
    measured_again,
    report_problem,
    score_report,
)
from spica_async.optimizer.types import Objective

SCALAR_OBJECTIVE = Objective("objective", maximize=True)
"""The one metric of a study with a scalar goal: the signed score."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a sample's evaluation ended; `cause` tells all outcomes but a feasible one apart."""

    outcome: Outcome
    cause: Cause | None = None
    detail: str | None = None

    @property
    def signature(self) -> tuple[Outcome, Cause | None, str]:
        """What makes two failures one and the same: figures that differ do so for a reason."""
        return self.outcome, self.cause, self.detail or ""


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict, with the candidate that it is about if it is a feasible one."""

    verdict: Verdict
    candidate: Candidate | None = None


def refuse(cause: Cause, detail: str) -> Judged:
    """The verdict on a sample that is infeasible before any replay."""
    return Judged(Verdict("infeasible", cause, detail))


def judge(
    measurements: Sequence[Measurement],
    *,
    config: SmartSearchConfig,
    candidate_id: str,
    branch: str,
    number: int,
    sample: Sample,
    facts: Mapping[str, JsonValue],
) -> Judged:
    """Score what was measured, unless there is something about it that must not be scored.

    The first measurement decides whether there is a candidate; of the others those count that are
    sound as well.
    """
    verdicts = [soundness(measurement, config.goal) for measurement in measurements]
    if verdicts[0].outcome != "feasible":
        return Judged(verdicts[0])
    reports = [
        measurement.report or {}
        for measurement, verdict in zip(measurements, verdicts, strict=True)
        if verdict.outcome == "feasible"
    ]
    candidate = make_candidate(
        candidate_id=candidate_id,
        branch=branch,
        number=number,
        sample=sample,
        reports=reports,
        goal=config.goal,
        facts=facts,
        replays=len(measurements),
    )
    budget = config.search_space.gpu_budget
    if not is_feasible(candidate.used_gpus, budget):
        return refuse("over_budget", f"uses {candidate.used_gpus} GPUs of {budget}")
    return Judged(Verdict("feasible"), candidate)


def soundness(measurement: Measurement, goal: OptimizationGoal) -> Verdict:
    """Whether a measurement can be scored under the goal, and why it cannot."""
    if measurement.outcome != "feasible":
        return Verdict(measurement.outcome, measurement.cause, measurement.detail)
    problem = report_problem(measurement.report or {}, goal.objectives)
    return Verdict("feasible") if problem is None else Verdict("failed", *problem)


def replayed(
    candidate: Candidate,
    measurement: Measurement,
    *,
    number: int,
    load: float,
    goal: OptimizationGoal,
) -> tuple[Candidate, bool]:
    """A candidate after one more replay, and whether that was sound.

    Args:
        candidate: as it was until now.
        measurement: what the replay came to.
        number: of the replay, under that load.
        load: factor of the workload's own load.
        goal: that it is scored under.
    """
    is_sound = soundness(measurement, goal).outcome == "feasible"
    report = (measurement.report or {}) if is_sound else None
    if load == 1.0:
        candidate = measured_again(candidate, number, report, goal)
        if is_sound and measurement.artifact is not None:
            candidate = replace(candidate, has_artifact=True)
    elif report is not None:
        loads = {**candidate.loads, load: score_report(report, goal)}
        candidate = replace(candidate, loads=loads)
    return candidate, is_sound


def study_objectives(goal: OptimizationGoal) -> tuple[Objective, ...]:
    """The metrics of a study: the signed score, or each raw Pareto objective in its direction."""
    if not goal.is_pareto:
        return (SCALAR_OBJECTIVE,)
    return tuple(Objective(target.value, target.maximize) for target in goal.objectives)


def metrics_for_sampler(
    candidate: Candidate | None, goal: OptimizationGoal
) -> dict[str, float] | None:
    """What the optimizer observes of a candidate, by objective; None where there is none."""
    if candidate is None:
        return None
    if not goal.is_pareto:
        return {SCALAR_OBJECTIVE.name: candidate.score}
    return candidate.named_objectives
