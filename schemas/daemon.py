"""What crosses to and from a daemon: over HTTP, and over AMQP as the data of commands."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

from pydantic import ConfigDict, Field, JsonValue

from schemas.base import MessageModel
from schemas.envelope import Envelope
from schemas.results import CandidateRecord, RankedCandidate, SweepStatus, Tally

SWEEP_COMMAND: Final = "spica.sweep.command.v1"
SWEEP_COMMAND_ANSWERED: Final = "spica.sweep.command.answered.v1"

StoredState = Literal["queued", "running", "paused", "failed", "cancelled", SweepStatus]
"""`interrupted` is a sweep whose daemon was stopped; all after `cancelled` but that are final."""

SweepState = Literal[StoredState, "unreadable"]
"""`unreadable` is a sweep of a newer version, in a state that the daemon does not know."""


class SweepSubmission(MessageModel):
    """A sweep to be run."""

    # A person may write it, and a key that was mistyped and ignored would run another sweep.
    model_config = ConfigDict(extra="forbid")

    config: dict[str, JsonValue] = Field(description="a SmartSearchConfig")
    priority: int = Field(
        default=0, ge=-100, le=100, description="higher begins first, and gets more of the slots"
    )
    use_cache: bool = Field(
        default=True, description="whether what was measured before need not be measured again"
    )


class BranchProgress(MessageModel):
    """How far one branch is."""

    branch: str
    phase: str
    round: int
    found: int = Field(description="unique successes towards `target`")
    target: int = Field(description="of the round, or of the branch under the continuous schedule")
    attempts: int
    in_flight: int


class SweepSummary(MessageModel):
    """A sweep in a list."""

    sweep_id: str
    state: SweepState
    reason: str | None = Field(default=None, description="why it has ended, failed or waits")
    priority: int
    submitted_at: datetime
    model: str
    hardware: str
    target: str = Field(description="of the goal")
    budget: int | None = Field(default=None, description="unique successes of all branches")
    feasible: int = Field(default=0, description="unique successes so far")
    best_score: float | None = Field(default=None, description="signed: higher is better")
    runner: str | None = Field(default=None, description="the coordinator that has it")


class SweepDetail(SweepSummary):
    """A sweep by itself."""

    config: dict[str, JsonValue]
    results_dir: str
    branches: list[BranchProgress] = Field(default_factory=list)
    tally: Tally = Field(default_factory=Tally)
    best: list[RankedCandidate] = Field(
        default_factory=list, description="the ten best, or the front under a pareto goal"
    )
    baseline: RankedCandidate | None = Field(
        default=None, description="what they are held against, once it is measured"
    )
    elapsed_seconds: float = Field(default=0.0, description="of running, pauses not counted")


class CandidatePage(MessageModel):
    """Some of a sweep's candidates, in the order in which they were measured."""

    total: int
    offset: int
    candidates: list[CandidateRecord]


class Problem(MessageModel):
    """What is wrong with a request, as in RFC 9457."""

    title: str
    status: int
    detail: str = Field(description="one line for a person, naming the field where there is one")


class SweepCommand(MessageModel):
    """Something that a daemon is asked to do."""

    action: Literal["submit", "cancel", "pause", "resume"]
    sweep_id: str | None = Field(default=None, description="of all actions but `submit`")
    submission: SweepSubmission | None = Field(default=None, description="of `submit`")


class SweepCommandAnswer(MessageModel):
    """What has come of a command, for whoever gave it a `reply_to`."""

    command: str = Field(description="its envelope's id")
    sweep: SweepSummary | None = None
    problem: Problem | None = None


class SweepCommanded(Envelope[SweepCommand]):
    """`spica.sweep.command.v1`."""

    type: Literal["spica.sweep.command.v1"] = SWEEP_COMMAND


class SweepCommandAnswered(Envelope[SweepCommandAnswer]):
    """`spica.sweep.command.answered.v1`."""

    type: Literal["spica.sweep.command.answered.v1"] = SWEEP_COMMAND_ANSWERED
