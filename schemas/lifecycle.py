"""Lifecycle events of sweeps: CloudEvents, in order and numbered for each sweep."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from schemas.base import MessageModel
from schemas.results import CandidateRecord, RankedCandidate, SweepResult


class SweepSubmitted(MessageModel):
    """It is known, and waits for its turn."""

    kind: Literal["sweep.submitted"] = "sweep.submitted"
    model: str
    hardware: str
    target: str
    priority: int = 0


class SweepStarted(MessageModel):
    """A coordinator goes to work on it, for the first time or again."""

    kind: Literal["sweep.started"] = "sweep.started"
    run: int = Field(ge=1)


class BranchEnumerated(MessageModel):
    """It is settled what one branch searches."""

    kind: Literal["branch.enumerated"] = "branch.enumerated"
    branch: str
    backends: list[str]
    configurations: int
    parameters: list[str]


class CandidateMeasured(MessageModel):
    """A unique sample has its verdict."""

    kind: Literal["candidate.measured"] = "candidate.measured"
    candidate: CandidateRecord


class BestImproved(MessageModel):
    """A candidate is better than all before it; not under a pareto goal."""

    kind: Literal["best.improved"] = "best.improved"
    candidate: RankedCandidate
    previous_score: float | None = None


class FrontChanged(MessageModel):
    """A candidate has come into the Pareto front; only under a pareto goal."""

    kind: Literal["front.changed"] = "front.changed"
    candidate: RankedCandidate
    removed: list[str] = Field(default_factory=list, description="candidates that it dominates")
    size: int = Field(description="of the front now")


class CandidateConfirmed(MessageModel):
    """One of the best was measured as often as the sweep's `confirm` block asks."""

    kind: Literal["candidate.confirmed"] = "candidate.confirmed"
    candidate: RankedCandidate


class SweepFinished(MessageModel):
    """It has come to its end."""

    kind: Literal["sweep.finished"] = "sweep.finished"
    result: SweepResult = Field(description="with the best of the ranking alone")


class SweepFailed(MessageModel):
    """It broke off; it can be resumed."""

    kind: Literal["sweep.failed"] = "sweep.failed"
    reason: str


class SweepPaused(MessageModel):
    """It was stopped; it can be resumed unless it was cancelled."""

    kind: Literal["sweep.paused", "sweep.cancelled"] = "sweep.paused"
    reason: str


Lifecycle = Annotated[
    SweepSubmitted
    | SweepStarted
    | BranchEnumerated
    | CandidateMeasured
    | BestImproved
    | FrontChanged
    | CandidateConfirmed
    | SweepFinished
    | SweepFailed
    | SweepPaused,
    Field(discriminator="kind"),
]


class SweepEvent(MessageModel):
    """One thing that has happened to a sweep, in a CloudEvents envelope.

    The topic is `<kind>`, e.g. `candidate.measured`.
    """

    specversion: Literal["1.0"] = "1.0"
    id: str = Field(description="<sweep>/<number>: the same each time that it is delivered")
    source: str = Field(description="spica/sweep/<sweep>")
    type: str = Field(description="spica.<kind>.v1")
    time: datetime = Field(default_factory=lambda: datetime.now(UTC))
    subject: str = Field(description="the sweep's id")
    datacontenttype: Literal["application/json"] = "application/json"
    sequence: int = Field(ge=1, description="within the sweep, without gaps")
    data: Lifecycle

    @classmethod
    def of(cls, sweep_id: str, number: int, data: Lifecycle) -> SweepEvent:
        """The event of a sweep with this number."""
        return cls(
            id=f"{sweep_id}/{number}",
            source=f"spica/sweep/{sweep_id}",
            type=f"spica.{data.kind}.v1",
            subject=sweep_id,
            sequence=number,
            data=data,
        )


SWEEP_EVENT: TypeAdapter[SweepEvent] = TypeAdapter(SweepEvent)
"""Reads an event from its JSON."""
