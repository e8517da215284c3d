"""The result of a run of a sweep, from the state of its branches."""

from __future__ import annotations

from schemas.results import (
    BranchEnd,
    BranchResult,
    SweepResult,
    SweepTimings,
    Tally,
)
from spica_async.evaluate.in_flight import Evaluations
from spica_async.evaluate.messages import Discarded
from spica_async.judge.ranking import entry_of, ranking
from spica_async.judge.sweep_result import (
    CutShort,
    is_useful,
    no_better,
    sum_tallies,
    sweep_reason,
    sweep_status,
)
from spica_async.search.branch import Branch
from spica_async.search.branches import Branches
from spica_async.search.schedule.state import BranchState, Phase
from spica_async.search.sweep import Sweep


def sweep_result(
    sweep: Sweep,
    branches: Branches,
    *,
    cut_short: CutShort | None,
    evaluations: Evaluations | None,
    search_seconds: float,
    total_seconds: float,
) -> SweepResult:
    """The result of a sweep as a run leaves it.

    Args:
        sweep: what was searched.
        branches: as the run leaves them.
        cut_short: what has left some of it undone, if anything has.
        evaluations: those of the run, if it came to any.
        search_seconds: spent on searching by all runs.
        total_seconds: seconds that all runs have taken, planning included.
    """
    config, baseline = sweep.plan.config, branches.baseline_candidate
    results = [branch_result(branch, cut_short) for branch in branches.branches]
    status = sweep_status(
        [result.end for result in results],
        interrupted=cut_short == "interrupted",
        useful=any(is_useful(one.objectives, config.goal) for one in branches.candidates),
    )
    converged = branches.converged and status == "converged"
    of_the_run = {
        "late_results": evaluations.discarded[Discarded.LATE] if evaluations else 0,
        "resent_requests": evaluations.resent if evaluations else 0,
        "replicates": sum(branch.replicates for branch in branches.branches)
        + branches.confirmation.replays,
    }
    samplers = [branch.stats for branch in branches.branches]
    return SweepResult(
        sweep_id=sweep.sweep_id,
        status=status,
        reason=sweep_reason(results, config.sweep, cut_short, converged=converged),
        ranking=ranking(
            branches.candidates,
            config.goal,
            confirmed=branches.confirmed,
            baseline=baseline,
        ),
        baseline=None if baseline is None else entry_of(baseline, config.goal),
        baseline_problem=None if branches.baseline is None else branches.baseline.problem,
        tally=sum_tallies(result.tally for result in results).model_copy(update=of_the_run),
        timings=SweepTimings(
            total=total_seconds,
            planning=sweep.planning_seconds,
            search=search_seconds,
            optimizer=sum(result.optimizer_seconds for result in results),
            compiling=sum(stats.compile_seconds for stats in samplers),
            compile_waits=sum(stats.compile_wait_seconds for stats in samplers),
            optimizer_starts=sum(stats.start_seconds for stats in samplers),
            evaluations=sum(result.evaluation_seconds for result in results)
            + (0.0 if branches.baseline is None else branches.baseline.evaluation_seconds),
        ),
        branches=results,
        results_dir=str(sweep.folder),
        seed=config.sweep.random_seed,
        versions=sweep.versions,
        accuracy=list(sweep.accuracy),
    )


def branch_result(branch: Branch, cut_short: CutShort | None = None) -> BranchResult:
    """The result of a branch: how it ended, or what has cut it short."""
    state = branch.state
    end: BranchEnd = cut_short or "interrupted"
    reason = "stopped before its end" if end == "interrupted" else "max_seconds were up"
    match state.phase:
        case Phase.COMPLETED:
            end, reason = "completed", f"found all {branch.budget} candidates of its budget"
        case Phase.EXHAUSTED:
            end, reason = "exhausted", "every distinct sample was evaluated"
        case Phase.STALLED:
            end = "stalled"
            which = f"round {state.round}" if branch.sweep.schedule == "rounds" else "it"
            reason = f"{which} ran out of attempts: what is proposed is known or fails"
            if not branch.candidates:
                reason = f"{which} ran out of attempts: {found_nothing(state)}"
        case Phase.CONVERGED:
            end = "converged"
            where = "of this branch" if branch.converged else "of all branches"
            reason = no_better(branch.sweep, where)
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
            reused=branch.reused,
            stand_ins=branch.stats.stand_ins,
            causes=dict(state.causes),
        ),
        optimizer_seconds=branch.stats.suggest_seconds,
        evaluation_seconds=branch.evaluation_seconds,
    )


def found_nothing(state: BranchState) -> str:
    """What most samples of a branch without a candidate ended by, in one line."""
    failures = state.failures()
    if not failures:
        return "nothing was evaluated yet"
    first = failures[0]
    count = sum((one.outcome, one.cause) == (first.outcome, first.cause) for one in failures)
    return f"{count} of {len(failures)} are {first.outcome}: {first.cause}: {first.detail}"
