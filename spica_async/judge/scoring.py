"""From a replay's report to a candidate, and from candidates to a ranking or a Pareto front."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import moocore
import numpy as np
from pydantic import JsonValue

from schemas.goal import OptimizationGoal, OptimizationTarget
from schemas.messages import Cause, Sample
from spica_async.judge.noise import Mean
from spica_async.space.sample import is_noisy

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
        reports: what each replay of it measured, one or more.
        report: the means of these.
        means: the raw value of each objective, by target, and how far it may be off.
        score: the signed value of the first objective, higher is better; raw under a Pareto goal.
        used_gpus: GPUs that the deployment starts with.
        facts: what was known of it before the replay.
        loads: its score under other loads, by factor of the workload's own.
        taken: the numbers of its replays whose results are in, failed ones too.
        has_artifact: whether one of them has left an artifact.
    """

    candidate_id: str
    branch: str
    number: int
    sample: Sample
    reports: tuple[Report, ...]
    report: Report
    means: Mapping[OptimizationTarget, Mean]
    score: float
    used_gpus: int
    facts: Mapping[str, JsonValue] = field(default_factory=dict)
    loads: Mapping[float, float] = field(default_factory=dict)
    taken: frozenset[int] = frozenset({0})
    has_artifact: bool = False

    @property
    def objectives(self) -> dict[OptimizationTarget, float]:
        """The raw value of each objective, by target."""
        return {target: mean.value for target, mean in self.means.items()}

    @property
    def replicates(self) -> int:
        """How many replays it was measured by."""
        return len(self.reports)

    @property
    def worst(self) -> float:
        """The lowest score under any load."""
        return min(self.score, *self.loads.values()) if self.loads else self.score

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
    return signed(objective_value(report, goal.objectives[0]), goal)


def signed(value: float, goal: OptimizationGoal) -> float:
    """A value of the first objective as a score."""
    is_raw = goal.is_pareto or goal.target.maximize
    return value if is_raw else -value


def is_feasible(used_gpus: int, gpu_budget: int) -> bool:
    """Whether a deployment is within the budget. The SLA is part of goodput, not of this."""
    return used_gpus <= gpu_budget


def make_candidate(
    *,
    candidate_id: str,
    branch: str,
    number: int,
    sample: Sample,
    reports: Sequence[Report],
    goal: OptimizationGoal,
    facts: Mapping[str, JsonValue],
    replays: int = 1,
) -> Candidate:
    """Score the mean of one or more reports under the goal.

    `replays` is how many results are in; all but the reports have failed.
    """
    used_gpus = sample["used_gpus"]
    assert isinstance(used_gpus, int)  # noqa: S101  # written by unroll_sample
    means = means_of(reports, goal, noisy=is_noisy(sample))
    return Candidate(
        candidate_id=candidate_id,
        branch=branch,
        number=number,
        sample=sample,
        reports=tuple(reports),
        report=mean_report(reports),
        means=means,
        score=signed(means[goal.objectives[0]].value, goal),
        used_gpus=used_gpus,
        facts=facts,
        taken=frozenset(range(replays)),
    )


def measured_again(
    candidate: Candidate, number: int, report: Report | None, goal: OptimizationGoal
) -> Candidate:
    """A candidate with the result of one more replay.

    Args:
        candidate: as it was until now.
        number: of the replay.
        report: what it has measured; None where it has failed.
        goal: that it is scored under.
    """
    taken = candidate.taken | {number}
    if report is None:
        return replace(candidate, taken=taken)
    reports = (*candidate.reports, report)
    means = means_of(reports, goal, noisy=is_noisy(candidate.sample))
    return replace(
        candidate,
        taken=taken,
        reports=reports,
        report=mean_report(reports),
        means=means,
        score=signed(means[goal.objectives[0]].value, goal),
    )


def means_of(
    reports: Sequence[Report], goal: OptimizationGoal, *, noisy: bool
) -> dict[OptimizationTarget, Mean]:
    """The mean of each objective over some reports."""
    return {
        target: Mean.of([objective_value(report, target) for report in reports], noisy=noisy)
        for target in goal.objectives
    }


def mean_report(reports: Sequence[Report]) -> Report:
    """The mean of each number that all reports have."""
    if len(reports) == 1:
        return reports[0]
    common = [key for key in reports[0] if all(key in report for report in reports)]
    return {key: float(statistics.mean(report[key] for report in reports)) for key in common}


def rank(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Best score first; ties go to fewer GPUs, then to the earlier suggestion of a branch."""
    return sorted(candidates, key=lambda c: (-c.score, c.used_gpus, c.branch, c.number))


def dominates(
    one: Mapping[str, float], other: Mapping[str, float], objectives: Sequence[OptimizationTarget]
) -> bool:
    """Whether one is at least as good as the other in every objective, and better in one."""
    gained = [(one[axis] - other[axis]) * (1 if axis.maximize else -1) for axis in objectives]
    return min(gained) >= 0 and max(gained) > 0


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
