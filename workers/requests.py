"""From a message to an evaluation request, or the kind of thing that is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from pydantic import ValidationError

from schemas.envelope import MAX_MESSAGE_BYTES
from schemas.messages import EVALUATION_REQUESTED, EvaluationRequest, EvaluationRequested
from spica_async.bus.port import Message

MAX_ID_CHARACTERS = 256
"""Ids are remembered and told again, so a stranger's must not be as long as a message."""

_MAX_DETAIL_CHARACTERS = 300


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
    """An evaluation request, the queue that awaits its result, and when it was sent."""

    request: EvaluationRequest
    reply_to: str
    sent_at: datetime


def parse_request(message: Message) -> AddressedRequest:
    """Read a message from a queue of evaluation requests.

    Raises:
        MalformedRequestError: it is not an answerable evaluation request.
    """
    if message.type != EVALUATION_REQUESTED:
        raise MalformedRequestError(Malformation.UNKNOWN_TYPE, f"type {message.type!r}")
    if message.reply_to is None:
        raise MalformedRequestError(Malformation.NO_REPLY_TO, "no queue for the result")
    # Ours are not so long, and reading what others send takes the loop's time.
    if len(message.body) > MAX_MESSAGE_BYTES:
        raise MalformedRequestError(
            Malformation.INVALID_BODY, f"{len(message.body)} bytes, more than {MAX_MESSAGE_BYTES}"
        )
    try:
        envelope = EvaluationRequested.model_validate_json(message.body)
    except ValidationError as error:
        raise MalformedRequestError(Malformation.INVALID_BODY, first_error(error)) from error
    request = envelope.data
    if max(len(request.evaluation_id), len(request.sweep_id)) > MAX_ID_CHARACTERS:
        raise MalformedRequestError(
            Malformation.INVALID_BODY, f"an id has more than {MAX_ID_CHARACTERS} characters"
        )
    sent_at = envelope.time if envelope.time.tzinfo else envelope.time.replace(tzinfo=UTC)
    return AddressedRequest(request, message.reply_to, sent_at)


def first_error(error: ValidationError) -> str:
    """What is wrong and where, in one line: a stranger's message may have thousands of errors."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:_MAX_DETAIL_CHARACTERS]
