"""What is kept of a candidate: the line of `candidates.jsonl`."""

from __future__ import annotations

from schemas.messages import EvaluationResult
from schemas.results import CandidateRecord, CandidateTimings
from spica_async.judge.verdict import Judged
from spica_async.optimizer.proposals import Proposal
from spica_async.space.branch import BranchSpace
from spica_async.space.sample import ResolvedSample


def candidate_record(
    space: BranchSpace,
    proposal: Proposal,
    resolved: ResolvedSample,
    judged: Judged,
    *,
    candidate_id: str,
    round_: int,
    result: EvaluationResult | None,
    waited_seconds: float,
    found_seconds: float,
    reused: int | None = None,
) -> CandidateRecord:
    """A unique sample and how its evaluation ended.

    Args:
        space: of the branch.
        proposal: the first of the sample.
        resolved: the sample.
        judged: the verdict on it.
        candidate_id: the evaluation's id.
        round_: in which it was proposed.
        result: what a worker has sent; None where it was never sent out.
        waited_seconds: from the suggestion to the start on a worker.
        found_seconds: from the sweep's start to the verdict.
        reused: how often it was measured, where the result is from the cache.
    """
    candidate = judged.candidate
    return CandidateRecord(
        candidate_id=candidate_id,
        branch=space.mode,
        round=round_,
        number=proposal.number,
        outcome=judged.verdict.outcome,
        cause=judged.verdict.cause,
        detail=judged.verdict.detail,
        score=candidate.score if candidate else None,
        objectives={t.value: v for t, v in candidate.objectives.items()} if candidate else None,
        used_gpus=proposal.selection.config.used_gpus,
        config=resolved.sample,
        metrics=dict(candidate.report) if candidate else None,
        facts=dict(resolved.facts),
        projection=proposal.projection.as_metadata() if proposal.projection else None,
        source=proposal.source,
        stand_in=proposal.stand_in,
        worker=result.worker if result else None,
        reused=reused,
        timings=_timings(result, waited_seconds) if result else None,
        found_seconds=found_seconds,
    )


def _timings(result: EvaluationResult, waited_seconds: float) -> CandidateTimings:
    return CandidateTimings(
        waited=waited_seconds,
        build=result.measurement.build_seconds,
        replay=result.measurement.replay_seconds,
        wall=result.wall_seconds,
    )
