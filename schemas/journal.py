"""The facts of a sweep, as its journal keeps them: all that it takes to go on after a crash.

A sweep is what its facts come to, taken in their order. Each is on disk before anything outside
hears of it. Samples, keys and verdicts are not among them: they follow from a proposal, a result
and the configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Literal

from pydantic import Field, JsonValue, TypeAdapter

from schemas.base import MessageModel
from schemas.messages import EvaluationResult, Measurement
from schemas.results import ProposalSource, RankedCandidate, SweepResult


class _Fact(MessageModel):
    at: float = Field(ge=0, description="seconds that the sweep had run for, pauses not counted")


class PlannedBranch(MessageModel):
    """What one branch searches."""

    branch: str
    backends: list[str]
    configurations: int = Field(ge=1, description="of shapes and replicas")
    parameters: list[str] = Field(description="of the study, by name")


class Planned(_Fact):
    """It is settled what is searched."""

    kind: Literal["planned"] = "planned"
    digest: str = Field(description="of the plan: another one gives the proposals another meaning")
    trace_sha256: str | None = None
    model_sha256: str | None = Field(
        default=None, description="of the files of a model that does not ship with the engine"
    )
    versions: dict[str, str] = Field(description="of the engine's distributions")
    planning_seconds: float = Field(ge=0)
    branches: list[PlannedBranch]
    replicates: bool = Field(
        default=False,
        description="whether anything is measured again; sweeps of older versions never do",
    )


class Started(_Fact):
    """A coordinator goes to work on it, for the first time or again."""

    kind: Literal["started"] = "started"
    run: int = Field(ge=1, description="how often one has, this time included")
    owner: str
    bus: str = Field(description="where its requests go: `memory`, or a broker without its login")


class Proposed(MessageModel):
    """One suggestion."""

    number: int = Field(ge=0, description="place among the branch's suggestions")
    source: ProposalSource
    assignment: dict[str, float | int | str] | None = Field(
        default=None, description="the study's values"
    )
    index: int | None = Field(default=None, ge=0, description="place in the list of all there is")
    projection: dict[str, JsonValue] | None = Field(
        default=None, description="how the latent shape became a configuration"
    )
    stand_in: str | None = None
    sample: str = Field(description="digest of the sample's key")


@dataclass(slots=True)
class SamplerStats:
    """What a sampler has done so far, and what that took.

    Attributes:
        asks: Asks that were answered.
        suggestions: Suggestions in those answers, stand-ins included.
        stand_ins: Suggestions that a quasi-random draw had to make.
        restarts: Optimizer processes started in place of one that failed.
        recycled: Optimizer processes replaced because they had grown too large.
        suggest_seconds: Wall time spent in asks, in seconds, given-up ones included.
        start_seconds: Wall time from the start of each optimizer process until its libraries were
            loaded, in seconds. Like the next two it counts from the first answer of a process on.
        compile_seconds: Wall time that optimizer processes spent on tracing, lowering and
            compiling, in and between asks, in seconds.
        compile_wait_seconds: The part of it for which asks waited.
    """

    asks: int = 0
    suggestions: int = 0
    stand_ins: int = 0
    restarts: int = 0
    recycled: int = 0
    suggest_seconds: float = 0.0
    start_seconds: float = 0.0
    compile_seconds: float = 0.0
    compile_wait_seconds: float = 0.0

    def add(self, other: SamplerStats) -> None:
        """Count what another sampler has done in, as one that went before does."""
        for field in fields(self):
            name = field.name
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Suggested(_Fact):
    """The branch has proposals: what is new among them will be evaluated."""

    kind: Literal["suggested"] = "suggested"
    branch: str
    proposals: list[Proposed] = Field(min_length=1)
    instead: bool = Field(
        default=False, description="in place of duplicates among the suggestions before"
    )
    costs: SamplerStats = Field(description="of the branch in this run so far")


class Requested(_Fact):
    """An evaluation request is about to be sent."""

    kind: Literal["requested"] = "requested"
    branch: str = Field(description="or `baseline`")
    number: int
    replicate: int = Field(default=0, ge=0)
    load: float = Field(default=1.0, gt=0, description="factor of the workload's own")


class Measured(_Fact):
    """An evaluation has its result."""

    kind: Literal["measured"] = "measured"
    branch: str = Field(description="or `baseline`")
    number: int
    result: EvaluationResult
    waited_seconds: float = Field(ge=0, description="from the suggestion to the start on a worker")
    reused: int | None = Field(
        default=None, description="taken from the cache, where it was measured so often"
    )
    replicate: int = Field(default=0, ge=0, description="how often it was measured before")
    others: list[Measurement] = Field(
        default_factory=list, description="further measurements that the cache had of it"
    )
    load: float = Field(default=1.0, gt=0, description="factor of the workload's own")


class Observed(_Fact):
    """The optimizer is about to hear what became of its suggestions."""

    kind: Literal["told"] = "told"
    branch: str
    numbers: list[int] = Field(min_length=1)


class Concluded(_Fact):
    """The branch wants no more suggestions: what is found no longer gets better, or nothing is."""

    kind: Literal["concluded"] = "concluded"
    branch: str
    by: Literal["branch", "sweep"] = Field(
        description="whose candidates no longer get better, or are none"
    )


class Confirmed(_Fact):
    """The best of the sweep were measured as often as was to be."""

    kind: Literal["confirmed"] = "confirmed"
    candidates: list[RankedCandidate]


class Stopped(_Fact):
    """It rests. Whoever ran it tells workers next that nobody waits for what is in flight."""

    kind: Literal["stopped"] = "stopped"
    reason: str
    failed: bool = Field(default=False, description="something went wrong; nobody asked for it")
    cancelled: bool = Field(default=False, description="it is not meant to be resumed")
    queued: bool = Field(default=False, description="it goes on by itself, with the next daemon")
    event: int | None = Field(
        default=None,
        ge=1,
        description="number of its event, where it was written while nobody ran the sweep",
    )
    result: SweepResult | None = Field(
        default=None, description="so far, with the best of the ranking alone"
    )


class Ended(_Fact):
    """It has come to its end."""

    kind: Literal["ended"] = "ended"
    result: SweepResult = Field(description="with the best of the ranking alone")


BranchFact = Suggested | Requested | Measured | Observed | Concluded
SweepFact = Annotated[
    Planned | Started | BranchFact | Confirmed | Stopped | Ended, Field(discriminator="kind")
]
SWEEP_FACT: TypeAdapter[SweepFact] = TypeAdapter(SweepFact)
"""Reads a fact from its JSON."""


class ListedSweep(MessageModel):
    """Kept beside each sweep, so that a list need not look into any of them."""

    model: str = ""
    hardware: str = ""
    target: str = ""
    per_branch: int = Field(default=0, description="unique successes asked of each branch")
    branches: int = Field(default=0, description="at most")
    feasible: int = Field(default=0, description="unique successes so far")
    reason: str | None = Field(default=None, description="why it rests or has ended")
    best_score: float | None = Field(default=None, description="signed: higher is better")
