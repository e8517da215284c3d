"""What a worker reads from the bus: requests from its queue, orders from broadcasts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from schemas.control import (
    ROLL_CALL,
    SWEEP_CANCELLED,
    RollCall,
    RollCalled,
    SweepCancellation,
    SweepCancelled,
)
from schemas.envelope import MAX_MESSAGE_BYTES
from schemas.messages import EVALUATION_REQUESTED, EvaluationRequest, EvaluationRequested
from spica_async.bus.port import Message

MAX_ID_CHARACTERS: Final = 256
"""Ids are remembered and sent on, so a stranger's must not be as long as a message."""
_MAX_DETAIL_CHARACTERS: Final = 300

Order = RollCall | SweepCancellation
ModelT = TypeVar("ModelT", bound=BaseModel)


class Malformation(StrEnum):
    """What can be wrong with a message."""

    UNKNOWN_TYPE = "unknown_type"
    """It may be meant for newer workers."""
    NO_REPLY_TO = "no_reply_to"
    INVALID_BODY = "invalid_body"


class MalformedMessageError(Exception):
    """A message cannot be handled, now or later; the text is one line."""

    def __init__(self, kind: Malformation, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class AddressedRequest:
    """An evaluation request, the queue that awaits its result, and when it was sent."""

    request: EvaluationRequest
    reply_to: str
    sent_at: datetime


def parse_request(message: Message) -> AddressedRequest:
    """Read a message from a queue of evaluation requests.

    Raises:
        MalformedMessageError: It is not an answerable evaluation request.
    """
    if message.type != EVALUATION_REQUESTED:
        raise MalformedMessageError(Malformation.UNKNOWN_TYPE, f"type {message.type!r}")
    if message.reply_to is None:
        raise MalformedMessageError(Malformation.NO_REPLY_TO, "no queue for the result")
    envelope = _parse(EvaluationRequested, message)
    request = envelope.data
    _check_ids(request.evaluation_id, request.sweep_id)
    sent_at = envelope.time if envelope.time.tzinfo else envelope.time.replace(tzinfo=UTC)
    return AddressedRequest(request, message.reply_to, sent_at)


def parse_order(message: Message) -> Order:
    """Read a broadcast to all workers.

    Raises:
        MalformedMessageError: It is no order that this worker knows.
    """
    if message.type == ROLL_CALL:
        return _parse(RollCalled, message).data
    if message.type != SWEEP_CANCELLED:
        raise MalformedMessageError(Malformation.UNKNOWN_TYPE, f"type {message.type!r}")
    cancellation = _parse(SweepCancelled, message).data
    _check_ids(cancellation.sweep_id)
    return cancellation


def _parse(model: type[ModelT], message: Message) -> ModelT:
    # Ours are not so long, and reading what others send takes the loop's time.
    if len(message.body) > MAX_MESSAGE_BYTES:
        raise MalformedMessageError(
            Malformation.INVALID_BODY, f"{len(message.body)} bytes, more than {MAX_MESSAGE_BYTES}"
        )
    try:
        return model.model_validate_json(message.body)
    except ValidationError as error:
        # A stranger's message may have thousands of errors.
        first = error.errors(include_url=False, include_input=False)[0]
        detail = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise MalformedMessageError(
            Malformation.INVALID_BODY, detail[:_MAX_DETAIL_CHARACTERS]
        ) from error


def _check_ids(*ids: str) -> None:
    if max(map(len, ids)) > MAX_ID_CHARACTERS:
        raise MalformedMessageError(
            Malformation.INVALID_BODY, f"an id has more than {MAX_ID_CHARACTERS} characters"
        )
