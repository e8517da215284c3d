"""Events about workers, for all who watch them."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from schemas.base import MessageModel
from schemas.envelope import Envelope

EVALUATION_STARTED: Final = "spica.evaluation.started.v1"
WORKER_HEARTBEAT: Final = "spica.worker.heartbeat.v1"
WORKER_JOINED: Final = "spica.worker.joined.v1"
WORKER_LEFT: Final = "spica.worker.left.v1"

WorkerState = Literal["starting", "ready", "draining"]


class EvaluationStart(MessageModel):
    """An evaluation has a slot, and has had it for a moment.

    Told once, also when it runs again after a child's death, and not at all when it ends at once.
    """

    evaluation_id: str = Field(min_length=1)
    sweep_id: str = Field(min_length=1)
    worker: str
    slot: int = Field(ge=0)


class EvaluationStarted(Envelope[EvaluationStart]):
    """`spica.evaluation.started.v1`."""

    type: Literal["spica.evaluation.started.v1"] = EVALUATION_STARTED


class WorkerStatus(MessageModel):
    """A worker as it is right now."""

    worker: str = Field(min_length=1, description="its name, unlike any other's")
    host: str
    pid: int
    engine_fingerprint: str = Field(description="names the queue that it takes requests from")
    versions: dict[str, str] = Field(
        default_factory=dict, description="the engine's distributions by name"
    )
    state: WorkerState
    slots: int = Field(ge=0, description="evaluations that it can run at once")
    evaluations: list[str] = Field(
        default_factory=list, description="ids of those that it holds, running or about to"
    )
    trouble: str | None = Field(
        default=None, description="what keeps it from working, for a person to read"
    )
    interval_seconds: float = Field(gt=0, description="until the next heartbeat")


class WorkerHeartbeat(Envelope[WorkerStatus]):
    """`spica.worker.heartbeat.v1`: after joining, at intervals, and when asked to."""

    type: Literal["spica.worker.heartbeat.v1"] = WORKER_HEARTBEAT


class WorkerJoined(Envelope[WorkerStatus]):
    """`spica.worker.joined.v1`: it has begun; heartbeats follow."""

    type: Literal["spica.worker.joined.v1"] = WORKER_JOINED


class WorkerLeft(Envelope[WorkerStatus]):
    """`spica.worker.left.v1`: it has ended in good order; what it held is given back."""

    type: Literal["spica.worker.left.v1"] = WORKER_LEFT
