"""A message from a queue, and the duty to settle it once, on the channel that it came by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from aiormq.abc import DeliveredMessage
from pamqp.commands import Basic

from spica_async.bus.port import (
    AlreadySettledError,
    DeadLetter,
    DeadLetterReason,
    DeliveryLostError,
    Message,
)
from spica_async.bus.rabbitmq.errors import TransientError, translated

_PERSISTENT, _TRANSIENT = 2, 1


def properties(message: Message, *, persistent: bool) -> Basic.Properties:
    """What goes beside the body of a message."""
    return Basic.Properties(
        content_type="application/json",
        delivery_mode=_PERSISTENT if persistent else _TRANSIENT,
        message_id=message.message_id,
        message_type=message.type,
        reply_to=message.reply_to,
    )


def read_message(incoming: DeliveredMessage) -> Message:
    """What was published; foreign messages may lack an id or a type, which are empty then."""
    beside = incoming.header.properties
    return Message(
        incoming.body,
        beside.message_id or "",
        beside.message_type or "",
        beside.reply_to or None,
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

    def __init__(self, queue: str, life: ChannelLife, incoming: DeliveredMessage) -> None:
        self._queue = queue
        self._life = life
        self._incoming = incoming
        self._message = read_message(incoming)
        self._state = _State.UNSETTLED
        life.unsettled += 1

    @property
    def message(self) -> Message:
        """See `Delivery.message`."""
        return self._message

    @property
    def delivery_count(self) -> int:
        """See `Delivery.delivery_count`; quorum queues leave it out the first time."""
        count = self._headers.get("x-delivery-count", 0)
        return count if isinstance(count, int) else 0

    @property
    def dead_letter(self) -> DeadLetter | None:
        """See `Delivery.dead_letter`; the broker puts the latest death first."""
        return last_death(self._headers)

    @property
    def _headers(self) -> Mapping[str, Any]:
        return self._incoming.header.properties.headers or {}

    @property
    def _tag(self) -> int:
        tag = self._incoming.delivery_tag
        assert tag is not None  # noqa: S101 - for the type checker; it was delivered
        return tag

    @property
    def is_lost(self) -> bool:
        """Whether its channel is gone, and it is delivered again to whoever takes it then."""
        return self._life.ended

    async def ack(self) -> None:
        """See `Delivery.ack`."""
        channel, tag = self._incoming.channel, self._tag
        await self._settle(_State.ACKED, lambda: channel.basic_ack(tag, wait=False))

    async def nack(self, *, requeue: bool) -> None:
        """See `Delivery.nack`."""
        state = _State.RETURNED if requeue else _State.REJECTED
        channel, tag = self._incoming.channel, self._tag
        await self._settle(state, lambda: channel.basic_nack(tag, requeue=requeue, wait=False))

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
