"""The CloudEvents envelope in which every message travels."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Generic, Literal, TypeVar
from uuid import uuid4

from pydantic import Field

from schemas.base import MessageModel

DataT = TypeVar("DataT", bound=MessageModel)

MAX_MESSAGE_BYTES = 1024 * 1024


class Envelope(MessageModel, Generic[DataT]):
    """CloudEvents 1.0 attributes around one message; the type carries the message's version."""

    specversion: Literal["1.0"] = "1.0"
    id: str = Field(default_factory=lambda: uuid4().hex, min_length=1)
    source: str = Field(min_length=1, description="who sent it, e.g. spica/coordinator/<sweep>")
    type: str = Field(min_length=1, description="e.g. spica.evaluation.requested.v1")
    time: datetime = Field(default_factory=lambda: datetime.now(UTC))
    subject: str | None = Field(default=None, description="what it is about: the evaluation id")
    datacontenttype: Literal["application/json"] = "application/json"
    dataschema: str | None = None
    data: DataT


class EnvelopeSubject(MessageModel):
    """The one attribute that tells what a message is about when its data cannot be read."""

    subject: str
