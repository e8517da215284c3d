"""What the coordinator asks of a worker, and what the worker answers.

A request is complete in itself: a flat sample, the load to replay and the SLA that goodput is
counted by. It says nothing of goals, rounds or optimizers, so its report answers other goals too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal, Self

from pydantic import Field, JsonValue, SecretStr, field_serializer

from schemas.base import MessageModel
from schemas.envelope import Envelope
from schemas.goal import SLATarget

EVALUATION_REQUESTED: Final = "spica.evaluation.requested.v1"
EVALUATION_COMPLETED: Final = "spica.evaluation.completed.v1"

MAX_ARTIFACT_BYTES: Final = 256 * 1024
"""Compressed, and before it is written as base64."""

WHOLE: Final = "whole."
"""Goes before the name of a metric that is of the whole run, where its window has one."""

Window = Literal["whole", "steady"]
Sample = dict[str, JsonValue]
Outcome = Literal["feasible", "infeasible", "unsupported", "failed"]
Cause = Literal[
    "no_kv_room",
    "over_budget",
    "engine_unsupported",
    "build_error",
    "replay_error",
    "time_limit",
    "resource_limited",
    "child_died",
    "report_incomplete",
    "report_not_finite",
    "result_malformed",
    "request_refused",
    "delivery_limit",
    "trace_unavailable",
    "model_unavailable",
    "performance_data_changed",
]


class TraceSource(MessageModel):
    """A place that a trace can be fetched from."""

    url: str = Field(min_length=1, description="http, https, or what fsspec opens, e.g. s3")
    token: SecretStr | None = Field(
        default=None, description="goes as a bearer token with the http request"
    )

    @field_serializer("token", when_used="json")
    def _send_token(self, token: SecretStr | None) -> str | None:
        return None if token is None else token.get_secret_value()


class TraceLoad(MessageModel):
    """A request trace, known by its digest and its size wherever it lies."""

    kind: Literal["trace"] = "trace"
    path: str = Field(description="where it lies for the coordinator, and perhaps for others")
    sources: list[TraceSource] = Field(
        default_factory=list, description="where to fetch it, the best one first"
    )
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    size_bytes: int = Field(ge=0)
    requests: int = Field(ge=1)
    total_tokens: int = Field(ge=1, description="input plus output tokens of all requests")
    trace_format: Literal["mooncake"] = "mooncake"
    block_size: int = Field(default=512, ge=1, description="input tokens per hash id")
    arrival_speedup_ratio: float = Field(default=1.0, gt=0)
    concurrency: int | None = Field(
        default=None, ge=1, description="closed loop with this many in flight; none: open loop"
    )


class SyntheticLoad(MessageModel):
    """Requests of fixed lengths; exactly one of `concurrency` (closed loop) and `request_rate`."""

    kind: Literal["synthetic"] = "synthetic"
    isl: int = Field(ge=1, description="input tokens per request")
    osl: int = Field(ge=1, description="output tokens per request")
    requests: int = Field(ge=1, description="sessions, of `turns_per_session` requests each")
    concurrency: int | None = Field(default=None, ge=1)
    request_rate: float | None = Field(default=None, gt=0, description="requests per second")
    shared_prefix_ratio: float = Field(default=0.0, ge=0, le=1)
    num_prefix_groups: int = Field(default=0, ge=0)
    turns_per_session: int = Field(default=1, ge=1)
    inter_turn_delay_ms: float = Field(default=0.0, ge=0)
    window: Window = Field(
        default="whole",
        description="what rates and latencies are of: all of the run, or what lies between its"
        " first burst and its last requests",
    )

    @property
    def total_tokens(self) -> int:
        """Input plus output tokens of all requests."""
        return self.requests * self.turns_per_session * (self.isl + self.osl)


Load = Annotated[TraceLoad | SyntheticLoad, Field(discriminator="kind")]


class ModelFiles(MessageModel):
    """A model of the user's own, as the files that the engine reads of its folder."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="of the unpacked `content`")
    content: str = Field(
        description="a JSON object of file name to text, compressed by zlib, in base64"
    )


class EvaluationRequest(MessageModel):
    """Replay one sample under one load. `evaluation_id` is the idempotency key."""

    evaluation_id: str = Field(min_length=1)
    sweep_id: str = Field(min_length=1)
    run: int = Field(
        default=1, ge=1, description="how often the sweep was begun or resumed when it was sent"
    )
    sample: Sample
    model: ModelFiles | None = Field(
        default=None,
        description="the model to replay, whatever the sample's `model_name`; none: that is the id"
        " of a model whose configuration ships with the engine",
    )
    load: Load
    sla: SLATarget | None = None
    max_eval_seconds: float | None = Field(
        default=None, gt=0, description="from the start of the evaluation; none: no limit"
    )
    replicate: int = Field(
        default=0, ge=0, description="how often this sample was measured before, under this load"
    )
    capture_interval_ms: float | None = Field(
        default=None,
        gt=0,
        description="have an artifact made, of a sample this often in simulated time; none: there"
        " is to be no artifact",
    )


class Measurement(MessageModel):
    """What one evaluation came to; a report if and only if it is feasible."""

    outcome: Outcome
    report: dict[str, float] | None = None
    cause: Cause | None = None
    detail: str | None = Field(default=None, description="one line for a person")
    build_seconds: float = Field(default=0.0, ge=0)
    replay_seconds: float = Field(default=0.0, ge=0)
    artifact: str | None = Field(
        default=None,
        max_length=4 * -(-MAX_ARTIFACT_BYTES // 3),
        pattern="^[A-Za-z0-9+/]*={0,2}$",
        description="an `Artifact` as JSON, compressed by gzip, in base64; older workers make none",
    )

    @classmethod
    def failed(cls, cause: Cause, detail: str) -> Self:
        """The measurement of an evaluation that has failed."""
        return cls(outcome="failed", cause=cause, detail=detail)


class EvaluationResult(MessageModel):
    """A measurement, whose it is and who took it."""

    evaluation_id: str = Field(min_length=1)
    sweep_id: str = Field(min_length=1)
    worker: str
    measurement: Measurement
    child_deaths: int = Field(default=0, ge=0, description="children that died on the way")
    wall_seconds: float = Field(ge=0, description="from taking the request to its end")
    model_sha256: str | None = Field(
        default=None,
        description="of the files that were replayed as the model, if any came along",
    )
    own_files: bool = Field(
        default=False,
        description="set by older workers alone: whether performance data or models of the"
        " worker's own had a say in it",
    )


def window_of(metrics: Iterable[str]) -> Window:
    """What the metrics of a report are of, by their names."""
    return "steady" if any(name.startswith(WHOLE) for name in metrics) else "whole"


class EvaluationRequested(Envelope[EvaluationRequest]):
    """`spica.evaluation.requested.v1`."""

    type: Literal["spica.evaluation.requested.v1"] = EVALUATION_REQUESTED


class EvaluationCompleted(Envelope[EvaluationResult]):
    """`spica.evaluation.completed.v1`."""

    type: Literal["spica.evaluation.completed.v1"] = EVALUATION_COMPLETED
