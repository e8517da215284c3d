"""A proposal with its sample, and the evaluation of a sample from proposal to verdict."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from schemas.goal import OptimizationGoal
from schemas.journal import Measured, Proposed
from schemas.messages import Measurement, window_of
from schemas.results import CandidateRecord, CandidateTimings
from spica_async.judge.ranking import score_interval
from spica_async.judge.verdict import Judged
from spica_async.optimizer.proposals import Proposal
from spica_async.space.sample import ResolvedSample


@dataclass(frozen=True, slots=True)
class Sampled:
    """A proposal with the sample that it means.

    Attributes:
        proposal: the proposal, of a study or a list.
        resolved: the sample, and whether it has room.
        key: identifies the sample; equal samples have the same.
    """

    proposal: Proposal
    resolved: ResolvedSample
    key: str

    @property
    def digest(self) -> str:
        """The key in short, written down to see later whether a proposal still means the same."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]

    @property
    def as_proposed(self) -> Proposed:
        """The proposal as the journal keeps it."""
        proposal = self.proposal
        return Proposed(
            number=proposal.number,
            source=proposal.source,
            assignment=proposal.assignment if proposal.index is None else None,
            index=proposal.index,
            projection=proposal.projection.as_metadata() if proposal.projection else None,
            stand_in=proposal.stand_in,
            sample=self.digest,
        )


@dataclass(slots=True)
class Evaluation:
    """A unique sample, from its proposal to its verdict.

    Attributes:
        evaluation_id: the name of the evaluation, which is the candidate's.
        branch: the deployment mode of the branch that has proposed it.
        sampled: the sample, and the first proposal of it.
        round: the round in which it was proposed.
        suggested_at: seconds that the sweep had run for.
        requested: whether a request was sent, by an earlier run of the sweep, that may be under
            way still.
        measurements: what was measured so far, where one did not do.
    """

    evaluation_id: str
    branch: str
    sampled: Sampled
    round: int
    suggested_at: float
    requested: bool = False
    measurements: list[Measurement] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        """The name of its next request."""
        return replicate_id(self.evaluation_id, len(self.measurements))

    def record(
        self, judged: Judged, measured: Measured | None, goal: OptimizationGoal
    ) -> CandidateRecord:
        """Its line of `candidates.jsonl`.

        Args:
            judged: the verdict on it.
            measured: what a worker has sent last; None where it was never sent out.
            goal: the goal that it was judged by.
        """
        proposal, resolved, candidate = (
            self.sampled.proposal,
            self.sampled.resolved,
            judged.candidate,
        )
        timings = measured and CandidateTimings(
            waited=measured.waited_seconds,
            build=measured.result.measurement.build_seconds,
            replay=measured.result.measurement.replay_seconds,
            wall=measured.result.wall_seconds,
        )
        return CandidateRecord(
            candidate_id=self.evaluation_id,
            branch=self.branch,
            round=self.round,
            number=proposal.number,
            outcome=judged.verdict.outcome,
            cause=judged.verdict.cause,
            detail=judged.verdict.detail,
            score=candidate.score if candidate else None,
            objectives=candidate.named_objectives if candidate else None,
            used_gpus=proposal.selection.config.used_gpus,
            config=resolved.sample,
            metrics=dict(candidate.report) if candidate else None,
            window=window_of(candidate.report) if candidate else "whole",
            replicates=candidate.replicates if candidate else 1,
            interval=score_interval(candidate, goal) if candidate else None,
            facts=dict(resolved.facts),
            projection=proposal.projection.as_metadata() if proposal.projection else None,
            source=proposal.source,
            stand_in=proposal.stand_in,
            worker=measured.result.worker if measured else None,
            reused=measured.reused if measured else None,
            timings=timings,
            found_seconds=measured.at if measured else self.suggested_at,
        )


def replicate_id(evaluation_id: str, replicate: int, load: float = 1.0) -> str:
    """The name of a request of an evaluation.

    Args:
        evaluation_id: the name of the evaluation, which its first request has, too.
        replicate: how often it was measured before, under that load.
        load: factor of the workload's own load.
    """
    at_load = "" if load == 1.0 else f"-x{load:g}"
    again = f"-r{replicate}" if replicate else ""
    return f"{evaluation_id}{at_load}{again}"
