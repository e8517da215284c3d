"""The events of a sweep, worked out from its facts and its candidates alone.

Pure, so that a sweep that is resumed makes the same events once more, and only new ones go out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from schemas.goal import OptimizationGoal
from schemas.journal import Confirmed, Ended, Planned, Started, Stopped, SweepFact
from schemas.lifecycle import (
    BestImproved,
    BranchEnumerated,
    CandidateConfirmed,
    CandidateMeasured,
    FrontChanged,
    Lifecycle,
    SweepFailed,
    SweepFinished,
    SweepPaused,
    SweepStarted,
)
from schemas.results import CandidateRecord, RankedCandidate
from spica_async.judge.scoring import dominates
from spica_async.judge.sweep_result import is_useful


class EventsFromFacts:
    """Makes events of facts and candidates, in the order in which they come.

    Args:
        goal: the goal that candidates are compared by.
    """

    def __init__(self, goal: OptimizationGoal) -> None:
        self._goal = goal
        self._best: float | None = None
        self._front: dict[str, Mapping[str, float]] = {}

    def fact(self, fact: SweepFact) -> Iterator[Lifecycle]:
        """The events of a fact; none if it concerns nobody else."""
        match fact:
            case Planned():
                for branch in fact.branches:
                    yield BranchEnumerated(**branch.model_dump())
            case Started():
                yield SweepStarted(run=fact.run)
            case Stopped(queued=True):
                pass  # It was not asked for, and goes on by itself.
            case Stopped(failed=True):
                yield SweepFailed(reason=fact.reason)
            case Stopped():
                kind = "sweep.cancelled" if fact.cancelled else "sweep.paused"
                yield SweepPaused(kind=kind, reason=fact.reason)
            case Confirmed():
                for candidate in fact.candidates:
                    yield CandidateConfirmed(candidate=candidate)
            case Ended():
                yield SweepFinished(result=fact.result)
            case _:
                pass

    def evaluated(self, record: CandidateRecord) -> Iterator[Lifecycle]:
        """The events of the verdict on a unique sample."""
        yield CandidateMeasured(candidate=record)
        if record.score is None or record.objectives is None:
            return
        if not is_useful(record.objectives, self._goal):
            return  # Nobody should deploy what meets no SLA.
        if self._goal.is_pareto:
            yield from self._entered(record, record.objectives)
        elif self._best is None or record.score > self._best:
            before, self._best = self._best, record.score
            yield BestImproved(candidate=_ranked(record), previous_score=before)

    def _entered(
        self, record: CandidateRecord, objectives: Mapping[str, float]
    ) -> Iterator[FrontChanged]:
        axes = self._goal.objectives
        if any(dominates(other, objectives, axes) for other in self._front.values()):
            return
        removed = [
            name for name, other in self._front.items() if dominates(objectives, other, axes)
        ]
        for name in removed:
            del self._front[name]
        self._front[record.candidate_id] = objectives
        yield FrontChanged(candidate=_ranked(record), removed=removed, size=len(self._front))


def _ranked(record: CandidateRecord) -> RankedCandidate:
    return RankedCandidate.model_validate(record, from_attributes=True)
