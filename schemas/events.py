"""What those who watch a sweep or a worker are told."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from schemas.base import MessageModel
from schemas.envelope import Envelope

EVALUATION_STARTED: Final = "spica.evaluation.started.v1"


class EvaluationStart(MessageModel):
    """An evaluation has a slot; told once, also when it runs again after a child's death."""

    evaluation_id: str = Field(min_length=1)
    sweep_id: str = Field(min_length=1)
    worker: str
    slot: int = Field(ge=0)


class EvaluationStarted(Envelope[EvaluationStart]):
    """`spica.evaluation.started.v1`."""

    type: Literal["spica.evaluation.started.v1"] = EVALUATION_STARTED
