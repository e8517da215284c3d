"""Candidates in the order in which to prefer them, those that noise cannot tell apart together."""

from __future__ import annotations

import math
from collections.abc import Sequence

from schemas.goal import OptimizationGoal
from schemas.messages import window_of
from schemas.results import RankedCandidate
from spica_async.judge.gain import gains
from spica_async.judge.noise import Mean
from spica_async.judge.scoring import Candidate, pareto_front, signed
from spica_async.space.sample import is_noisy

MIN_REPLICATES = 4
"""So many replays say by how much the others may be off; fewer have intervals of no use."""

_FRAGILE = 0.75


def is_confirmed(candidate: Candidate) -> bool:
    """Whether its mean is known, since its replays do not differ or enough of them were made."""
    return not is_noisy(candidate.sample) or candidate.replicates >= MIN_REPLICATES


def ordered(
    candidates: Sequence[Candidate], goal: OptimizationGoal, *, confirmed: int = 0
) -> list[list[Candidate]]:
    """All candidates or their front, best first, in groups of which noise cannot tell the order.

    A group begins with the best mean; what does not differ from that belongs to it. Within a group
    fewer GPUs come first, then the lower TTFT.

    Args:
        candidates: what was measured.
        goal: what makes one better than another.
        confirmed: how many of the best were to be confirmed by now. What is noisy and was measured
            too seldom comes behind these: where replays ran out, only luck may set it before them.
    """
    if goal.is_pareto:
        # By the last objective, which is the front's own order.
        return [list(group) for group in _grouped(pareto_front(list(candidates), goal.objectives))]

    known = sorted(
        (one.score for one in candidates if is_noisy(one.sample) and is_confirmed(one)),
        reverse=True,
    )[:confirmed]

    def preference(one: Candidate) -> tuple[bool, float, bool]:
        score = one.worst if goal.robust else one.score
        is_known = is_confirmed(one)
        if known and not is_known:
            score = min(score, known[-1])
        return goal.robust and not one.loads, -score, not is_known

    by_mean = sorted(candidates, key=lambda one: (preference(one), one.branch, one.number))
    # One replay for each load says nothing of the noise of the worst.
    groups = [[one] for one in by_mean] if goal.robust else _grouped(by_mean)
    return [sorted(group, key=_cheapness) for group in groups]


def ranking(
    candidates: Sequence[Candidate],
    goal: OptimizationGoal,
    *,
    confirmed: int = 0,
    most: int | None = None,
    baseline: Candidate | None = None,
) -> list[RankedCandidate]:
    """Candidates best first, or the front under a Pareto goal, as the result lists them.

    Args:
        candidates: see `ordered`.
        goal: see `ordered`.
        confirmed: see `ordered`.
        most: how many of the best to list; a front is listed as a whole.
        baseline: what each of them is held against; none: nothing.
    """
    groups = ordered(candidates, goal, confirmed=confirmed)
    listed = [(number, one) for number, group in enumerate(groups, 1) for one in group]
    if not goal.is_pareto:
        listed = listed[:most]
    fragile = _fragile([one for _, one in listed], goal)
    return [
        entry_of(one, goal, baseline=baseline).model_copy(
            update={"group": number, "is_fragile": one.candidate_id in fragile}
        )
        for number, one in listed
    ]


def entry_of(
    candidate: Candidate, goal: OptimizationGoal, *, baseline: Candidate | None = None
) -> RankedCandidate:
    """What is known of a candidate by itself, as the result lists it.

    Args:
        candidate: what was measured.
        goal: what makes one better than another.
        baseline: what it is held against; none: nothing.
    """
    gained = gains(candidate, baseline)
    return RankedCandidate(
        candidate_id=candidate.candidate_id,
        score=candidate.score,
        objectives=candidate.named_objectives,
        used_gpus=candidate.used_gpus,
        config=candidate.sample,
        metrics=dict(candidate.report),
        window=window_of(candidate.report),
        facts=dict(candidate.facts),
        replicates=candidate.replicates,
        interval=score_interval(candidate, goal),
        intervals={
            target.value: mean.interval
            for target, mean in candidate.means.items()
            if mean.interval is not None
        },
        metric_intervals=metric_intervals(candidate),
        confirmed=is_confirmed(candidate),
        loads={f"{factor:g}": score for factor, score in sorted(candidate.loads.items())},
        worst=candidate.worst if candidate.loads else None,
        gain=gained.get(goal.objectives[0]),
        gains={target.value: one for target, one in gained.items()},
        artifact=artifact_path(candidate.candidate_id) if candidate.has_artifact else None,
    )


def artifact_path(candidate_id: str) -> str:
    """Where in a results folder a candidate's artifact lies."""
    return f"artifacts/{candidate_id}.json.gz"


def score_interval(candidate: Candidate, goal: OptimizationGoal) -> tuple[float, float] | None:
    """The 95 % interval of a score, the lower bound first; None where nothing is known of it."""
    interval = candidate.means[goal.objectives[0]].interval
    if interval is None:
        return None
    low, high = sorted(signed(bound, goal) for bound in interval)
    return low, high


def metric_intervals(candidate: Candidate) -> dict[str, tuple[float, float]]:
    """The 95 % interval of each metric, the lower bound first; none where there was one replay."""
    if candidate.replicates == 1:
        return {}
    noisy = is_noisy(candidate.sample)
    means = {
        name: Mean.of([report[name] for report in candidate.reports], noisy=noisy)
        for name in candidate.report
    }
    return {name: mean.interval for name, mean in means.items() if mean.interval is not None}


def _grouped(best_first: Sequence[Candidate]) -> list[list[Candidate]]:
    groups: list[list[Candidate]] = []
    noisy = sum(is_noisy(one.sample) and is_confirmed(one) for one in best_first)
    for one in best_first:
        if groups and not _differ(groups[-1][0], one, comparisons=max(1, noisy - 1)):
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _differ(one: Candidate, other: Candidate, *, comparisons: int) -> bool:
    """Whether noise can tell two apart; of one whose noise is unknown nobody can say so."""
    if not (is_confirmed(one) and is_confirmed(other)):
        return True
    return any(
        mean.differs(other.means[target], comparisons=comparisons)
        for target, mean in one.means.items()
    )


def _cheapness(one: Candidate) -> tuple[int, float]:
    return one.used_gpus, one.report.get("mean_ttft_ms", math.inf)


def _fragile(candidates: Sequence[Candidate], goal: OptimizationGoal) -> set[str]:
    """Those that fall behind the best under another load by more than a quarter of their score."""
    loaded = [one for one in candidates if one.loads]
    fragile = set()
    for factor in {factor for one in loaded for factor in one.loads}:
        there = [one for one in loaded if factor in one.loads]
        best, best_there = max(one.score for one in there), max(one.loads[factor] for one in there)
        fragile |= {
            one.candidate_id
            for one in there
            if _part(one.loads[factor], best_there, goal) < _FRAGILE * _part(one.score, best, goal)
        }
    return fragile


def _part(score: float, best: float, goal: OptimizationGoal) -> float:
    """How much of the best a score comes to, at most 1."""
    if not goal.is_pareto and not goal.objectives[0].maximize:
        score, best = best, score  # Both are negative.
    return score / best if best else 1.0
