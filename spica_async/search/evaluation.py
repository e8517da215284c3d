"""A proposal with its sample, and the evaluation of a sample from proposal to verdict."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from schemas.journal import Measured, Proposed
from schemas.results import CandidateRecord, CandidateTimings
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
    """

    evaluation_id: str
    branch: str
    sampled: Sampled
    round: int
    suggested_at: float
    requested: bool = False

    def record(self, judged: Judged, measured: Measured | None) -> CandidateRecord:
        """Its line of `candidates.jsonl`.

        Args:
            judged: the verdict on it.
            measured: what a worker has sent; None where it was never sent out.
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
            facts=dict(resolved.facts),
            projection=proposal.projection.as_metadata() if proposal.projection else None,
            source=proposal.source,
            stand_in=proposal.stand_in,
            worker=measured.result.worker if measured else None,
            reused=measured.reused if measured else None,
            timings=timings,
            found_seconds=measured.at if measured else self.suggested_at,
        )
