"""What every worker is told: from a broadcast to an order, or what is wrong with it."""

from __future__ import annotations

from pydantic import ValidationError

from schemas.control import (
    ROLL_CALL,
    SWEEP_CANCELLED,
    RollCall,
    RollCalled,
    SweepCancellation,
    SweepCancelled,
)
from schemas.envelope import MAX_MESSAGE_BYTES
from spica_async.bus.port import Message
from workers.requests import MAX_ID_CHARACTERS, first_error

Order = RollCall | SweepCancellation


class UnknownOrderError(Exception):
    """The broadcast is of a type that this worker does not know: perhaps for newer ones."""


class MalformedOrderError(Exception):
    """The broadcast is not what its type says."""


def parse_order(message: Message) -> Order:
    """Read a broadcast.

    Raises:
        UnknownOrderError: see there.
        MalformedOrderError: see there.
    """
    if len(message.body) > MAX_MESSAGE_BYTES:
        raise MalformedOrderError(f"{len(message.body)} bytes, more than {MAX_MESSAGE_BYTES}")
    try:
        if message.type == ROLL_CALL:
            return RollCalled.model_validate_json(message.body).data
        if message.type == SWEEP_CANCELLED:
            cancellation = SweepCancelled.model_validate_json(message.body).data
        else:
            raise UnknownOrderError(f"type {message.type!r}")
    except ValidationError as error:
        raise MalformedOrderError(f"{message.type}: {first_error(error)}") from error
    if len(cancellation.sweep_id) > MAX_ID_CHARACTERS:
        raise MalformedOrderError(f"{message.type}: sweep_id is over {MAX_ID_CHARACTERS} long")
    return cancellation
