"""What a sweep leaves behind: one record per evaluated candidate, and the result as a whole."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, JsonValue

from schemas.accuracy import BackendAccuracy
from schemas.base import MessageModel
from schemas.messages import Cause, Outcome, Sample, Window

SweepStatus = Literal[
    "completed",
    "exhausted",
    "stalled",
    "converged",
    "time_limit",
    "nothing_feasible",
    "interrupted",
]
BranchEnd = Literal[
    "completed", "exhausted", "stalled", "failed", "converged", "time_limit", "interrupted"
]
ProposalSource = Literal["optimizer", "warm_start", "neighbour", "stand_in", "list"]
"""Who proposed a candidate: the optimizer, an analytical estimate, what lies beside a duplicate, a
quasi-random draw in the optimizer's place, or the list of all there is."""


Interval = tuple[float, float]
_INTERVAL: Final = (
    "the 95 % interval of the score's mean; none: its replays differ, and it was measured once"
)


_WINDOW: Final = (
    "what rates and latencies in `metrics`, and so the score, are of; what they are of the whole"
    " run stands beside each under `whole.` and its name"
)


class CandidateTimings(MessageModel):
    """Where one evaluation's time went, in seconds."""

    waited: float = Field(ge=0, description="from the suggestion to the start on a worker")
    build: float = Field(ge=0)
    replay: float = Field(ge=0)
    wall: float = Field(ge=0, description="on the worker, from taking the request to its end")


class CandidateRecord(MessageModel):
    """One line of `candidates.jsonl`: a unique sample and how its evaluation ended."""

    candidate_id: str
    branch: str
    round: int
    number: int = Field(description="place among the branch's suggestions, from 0")
    outcome: Outcome
    cause: Cause | None = None
    detail: str | None = None
    score: float | None = Field(default=None, description="signed: higher is better")
    objectives: dict[str, float] | None = None
    used_gpus: int
    config: Sample
    metrics: dict[str, float] | None = Field(default=None, description="means, if of several")
    window: Window = Field(default="whole", description=_WINDOW)
    replicates: int = Field(default=1, ge=1, description="replays that it was measured by")
    interval: Interval | None = Field(default=None, description=_INTERVAL)
    facts: dict[str, JsonValue] = Field(default_factory=dict)
    projection: dict[str, JsonValue] | None = None
    source: ProposalSource
    stand_in: str | None = Field(default=None, description="why the optimizer did not propose it")
    worker: str | None = None
    reused: int | None = Field(
        default=None,
        description="not measured for this sweep, but taken from the cache; how often it had been"
        " measured by then",
    )
    timings: CandidateTimings | None = Field(default=None, description="none: never sent out")
    found_seconds: float = Field(ge=0, description="from the sweep's start to its verdict")


class Gain(MessageModel):
    """How much better than the baseline something is."""

    percent: float = Field(description="of the baseline's; above 0 is better, whatever the metric")
    margin: float | None = Field(
        default=None,
        ge=0,
        description="half of its 95 % interval; none: too few replays of one of the two",
    )


class RankedCandidate(MessageModel):
    """One deployment of the ranking or the front."""

    candidate_id: str
    score: float = Field(description="signed: higher is better; pareto: the first objective")
    objectives: dict[str, float]
    used_gpus: int
    config: Sample
    metrics: dict[str, float] = Field(description="means, if of several replays")
    facts: dict[str, JsonValue] = Field(default_factory=dict)
    window: Window = Field(default="whole", description=_WINDOW)
    replicates: int = Field(default=1, ge=1, description="replays that it was measured by")
    interval: Interval | None = Field(default=None, description=_INTERVAL)
    intervals: dict[str, Interval] = Field(
        default_factory=dict, description="likewise for each objective, unsigned"
    )
    metric_intervals: dict[str, Interval] = Field(
        default_factory=dict, description="likewise for each metric, if of several replays"
    )
    group: int | None = Field(
        default=None, ge=1, description="equal for those whose difference does not clear the noise"
    )
    confirmed: bool = Field(
        default=False, description="measured as often as the sweep's `confirm` block asks"
    )
    loads: dict[str, float] = Field(
        default_factory=dict,
        description="the score under other loads, by factor of the workload's own",
    )
    worst: float | None = Field(default=None, description="the lowest score under any load")
    is_fragile: bool = Field(
        default=False,
        description="under another load it loses more than a quarter against the best there",
    )
    gain: Gain | None = Field(
        default=None, description="of the score, where the sweep has a baseline that is not at 0"
    )
    gains: dict[str, Gain] = Field(default_factory=dict, description="likewise for each objective")
    artifact: str | None = Field(
        default=None, description="the file in the results folder that has its `Artifact`"
    )


class Tally(MessageModel):
    """Suggestions by what became of them."""

    attempts: int = 0
    feasible: int = 0
    infeasible: int = 0
    unsupported: int = 0
    failed: int = 0
    cached: int = Field(default=0, description="duplicates answered by another's evaluation")
    reused: int = Field(default=0, description="unique ones answered from the cache of results")
    stand_ins: int = Field(default=0, description="made by a quasi-random draw")
    replicates: int = Field(
        default=0, description="replays of what was measured already, in search and confirmation"
    )
    late_results: int = Field(
        default=0, description="came after their evaluation had ended, since it was last resumed"
    )
    resent_requests: int = Field(
        default=0, description="lost on their way and sent again, since it was last resumed"
    )
    causes: dict[str, int] = Field(default_factory=dict)


class BranchResult(MessageModel):
    """How one branch ended."""

    branch: str
    end: BranchEnd
    reason: str
    rounds: int
    tally: Tally
    optimizer_seconds: float
    evaluation_seconds: float


class SweepTimings(MessageModel):
    """Where the time went, in seconds; `optimizer` and `evaluations` are sums over branches."""

    total: float
    planning: float
    search: float
    optimizer: float = Field(description="spent in asks; replays may run meanwhile")
    compiling: float = Field(description="of the optimizers' programs, in asks and ahead of them")
    compile_waits: float = Field(description="the part of it that asks waited for")
    optimizer_starts: float = Field(description="of the optimizers' processes, with their imports")
    evaluations: float


class SweepResult(MessageModel):
    """What `spica-async run --json` prints."""

    sweep_id: str
    status: SweepStatus
    reason: str = Field(description="why it ended")
    ranking: list[RankedCandidate]
    baseline: RankedCandidate | None = Field(
        default=None, description="what the candidates are held against; not in the ranking"
    )
    baseline_problem: str | None = Field(
        default=None, description="why there is no baseline, where one was to be measured"
    )
    tally: Tally
    timings: SweepTimings
    branches: list[BranchResult]
    results_dir: str
    seed: int
    versions: dict[str, str]
    accuracy: list[BackendAccuracy] | None = Field(
        default=None,
        description="how far replays are from silicon, for each backend; none: of an older version",
    )
