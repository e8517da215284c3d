"""How branches and sweeps have ended, in the words of their result."""

from __future__ import annotations

from collections.abc import Iterable

from schemas.results import (
    BranchEnd,
    BranchResult,
    RankedCandidate,
    SweepStatus,
    Tally,
)
from spica_async.branch import Phase
from spica_async.scoring import Candidate
from spica_async.search import BranchSearch


def sweep_status(ends: Iterable[BranchEnd], *, interrupted: bool, useful: bool) -> SweepStatus:
    """What to call a sweep by how its branches ended.

    Args:
        ends: the end of each branch.
        interrupted: whether it was stopped from outside.
        useful: whether some candidate serves the goal at all.
    """
    if interrupted:
        return "interrupted"
    if not useful:
        return "nothing_feasible"
    known = set(ends)
    if "stalled" in known:
        return "stalled"
    return "completed" if "completed" in known else "exhausted"


def is_useful(candidate: Candidate) -> bool:
    """Whether any request of the candidate met the SLA, where the goal counts those that do."""
    return all(value > 0 for target, value in candidate.objectives.items() if target.needs_sla)


def branch_result(branch: BranchSearch) -> BranchResult:
    """How a branch ended, or that it has not."""
    state = branch.state
    end: BranchEnd = "interrupted"
    reason = "stopped before its end"
    match state.phase:
        case Phase.COMPLETED:
            end, reason = "completed", f"all {branch.max_rounds} rounds found their candidates"
        case Phase.EXHAUSTED:
            end, reason = "exhausted", "every distinct sample was evaluated"
        case Phase.STALLED:
            end = "stalled"
            reason = f"round {state.round} ran out of attempts: what is proposed is known or fails"
        case Phase.FAILED:
            end = "failed"
            verdict = state.sole_failure
            assert verdict is not None  # noqa: S101  # the phase says so
            reason = f"everything tried is {verdict.outcome}: {verdict.cause}: {verdict.detail}"
    outcomes = state.tally
    return BranchResult(
        branch=branch.space.mode,
        end=end,
        reason=reason,
        rounds=state.round,
        tally=Tally(
            attempts=state.attempts,
            feasible=outcomes["feasible"],
            infeasible=outcomes["infeasible"],
            unsupported=outcomes["unsupported"],
            failed=outcomes["failed"],
            cached=state.duplicates,
            stand_ins=branch.stats.stand_ins,
            causes=dict(state.causes),
        ),
        optimizer_seconds=branch.stats.suggest_seconds,
        evaluation_seconds=branch.evaluation_seconds,
    )


def sum_tallies(tallies: Iterable[Tally]) -> Tally:
    """The suggestions of several branches, by what became of them."""
    total = Tally().model_dump()
    for tally in tallies:
        for name, value in tally.model_dump().items():
            if name == "causes":
                for cause, count in value.items():
                    total["causes"][cause] = total["causes"].get(cause, 0) + count
            else:
                total[name] += value
    return Tally.model_validate(total)


def ranked(candidate: Candidate) -> RankedCandidate:
    """A candidate as the result lists it."""
    return RankedCandidate(
        candidate_id=candidate.candidate_id,
        score=candidate.score,
        objectives={target.value: value for target, value in candidate.objectives.items()},
        used_gpus=candidate.used_gpus,
        config=candidate.sample,
        metrics=dict(candidate.report),
        facts=dict(candidate.facts),
    )
