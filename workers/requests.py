"""From a message to an evaluation request, or the kind of thing that is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import ValidationError

from schemas.messages import EVALUATION_REQUESTED, EvaluationRequest, EvaluationRequested
from spica_async.bus.port import Message


class Malformation(StrEnum):
    """What can be wrong with a message in a queue of evaluation requests."""

    UNKNOWN_TYPE = "unknown_type"
    NO_REPLY_TO = "no_reply_to"
    INVALID_BODY = "invalid_body"


class MalformedRequestError(Exception):
    """A message cannot be handled, now or later."""

    def __init__(self, kind: Malformation, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class AddressedRequest:
    """An evaluation request and the queue that awaits its result."""

    request: EvaluationRequest
    reply_to: str


def parse_request(message: Message) -> AddressedRequest:
    """Read a message from a queue of evaluation requests.

    Raises:
        MalformedRequestError: it is not an answerable evaluation request.
    """
    if message.type != EVALUATION_REQUESTED:
        raise MalformedRequestError(Malformation.UNKNOWN_TYPE, f"type {message.type!r}")
    if message.reply_to is None:
        raise MalformedRequestError(Malformation.NO_REPLY_TO, "no queue for the result")
    try:
        envelope = EvaluationRequested.model_validate_json(message.body)
    except ValidationError as error:
        raise MalformedRequestError(Malformation.INVALID_BODY, str(error)) from error
    return AddressedRequest(envelope.data, message.reply_to)
