"""A message from a queue, and the duty to settle it once, on the channel that it came by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from aio_pika import Message as PikaMessage
from aio_pika.abc import AbstractIncomingMessage, DeliveryMode

from spica_async.bus.port import (
    AlreadySettledError,
    DeadLetter,
    DeadLetterReason,
    DeliveryLostError,
    Message,
)
from spica_async.bus.rabbitmq.errors import TransientError, translated


def to_pika(message: Message, *, persistent: bool) -> PikaMessage:
    """The message as the client library sends it."""
    return PikaMessage(
        message.body,
        message_id=message.message_id,
        type=message.type,
        reply_to=message.reply_to,
        content_type="application/json",
        delivery_mode=DeliveryMode.PERSISTENT if persistent else DeliveryMode.NOT_PERSISTENT,
    )


def from_pika(message: AbstractIncomingMessage) -> Message:
    """What was published; foreign messages may lack an id or a type, which are empty then."""
    return Message(
        message.body, message.message_id or "", message.type or "", message.reply_to or None
    )


@dataclass(slots=True)
class ChannelLife:
    """Whether deliveries of a channel can still be settled, and how many wait for that."""

    ended: bool = False
    unsettled: int = 0


class _State(Enum):
    UNSETTLED = auto()
    ACKED = auto()
    RETURNED = auto()
    REJECTED = auto()


class RabbitDelivery:
    """Implements `spica_async.bus.port.Delivery`."""

    def __init__(self, queue: str, life: ChannelLife, incoming: AbstractIncomingMessage) -> None:
        self._queue = queue
        self._life = life
        self._incoming = incoming
        self._message = from_pika(incoming)
        self._state = _State.UNSETTLED
        life.unsettled += 1

    @property
    def message(self) -> Message:
        """See `Delivery.message`."""
        return self._message

    @property
    def delivery_count(self) -> int:
        """See `Delivery.delivery_count`; quorum queues leave it out the first time."""
        count = self._incoming.headers.get("x-delivery-count", 0)
        return count if isinstance(count, int) else 0

    @property
    def dead_letter(self) -> DeadLetter | None:
        """See `Delivery.dead_letter`; the broker puts the latest death first."""
        return last_death(self._incoming.headers)

    @property
    def is_lost(self) -> bool:
        """Whether its channel is gone, and it is delivered again to whoever takes it then."""
        return self._life.ended

    async def ack(self) -> None:
        """See `Delivery.ack`."""
        await self._settle(_State.ACKED, self._incoming.ack)

    async def nack(self, *, requeue: bool) -> None:
        """See `Delivery.nack`."""
        state = _State.RETURNED if requeue else _State.REJECTED
        await self._settle(state, lambda: self._incoming.nack(requeue=requeue))

    async def _settle(self, state: _State, settle: Callable[[], Awaitable[None]]) -> None:
        if self._state is state:
            return
        what = f"message {self._message.message_id} of {self._queue}"
        if self._state is not _State.UNSETTLED:
            raise AlreadySettledError(f"{what}: {self._state.name.lower()} before")
        if self._life.ended:
            raise DeliveryLostError(f"{what}: its consumer or its queue was lost")
        try:
            with translated():
                await settle()
        except TransientError as error:
            raise DeliveryLostError(f"{what}: {error}") from error
        self._state = state
        self._life.unsettled -= 1


def last_death(headers: Mapping[str, Any]) -> DeadLetter | None:
    """Where and why a message died last, read from `x-death`; None for whoever has not died."""
    deaths = headers.get("x-death")
    if not isinstance(deaths, list) or not deaths or not isinstance(deaths[0], Mapping):
        return None
    queue, reason = deaths[0].get("queue"), deaths[0].get("reason")
    try:
        return DeadLetter(str(queue), DeadLetterReason(str(reason)))
    except ValueError:
        return None
