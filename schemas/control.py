"""Broadcasts to all workers."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from schemas.base import MessageModel
from schemas.envelope import Envelope

ROLL_CALL: Final = "spica.worker.roll_call.v1"
SWEEP_CANCELLED: Final = "spica.sweep.cancelled.v1"


class RollCall(MessageModel):
    """Each worker answers with a heartbeat at once."""

    coordinator: str = Field(min_length=1, description="who asks")


class SweepCancellation(MessageModel):
    """Nobody waits for what of this run of a sweep, or one before, has not started.

    What runs has a while to end.
    """

    sweep_id: str = Field(min_length=1)
    run: int = Field(
        default=1, ge=1, description="the run that is over; a later one has requests of its own"
    )
    grace_seconds: float = Field(ge=0, description="from now on, for evaluations that run")


class RollCalled(Envelope[RollCall]):
    """`spica.worker.roll_call.v1`."""

    type: Literal["spica.worker.roll_call.v1"] = ROLL_CALL


class SweepCancelled(Envelope[SweepCancellation]):
    """`spica.sweep.cancelled.v1`."""

    type: Literal["spica.sweep.cancelled.v1"] = SWEEP_CANCELLED
