"""A message from a queue, and the duty to settle it once, on the channel that it came by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiormq.abc import DeliveredMessage

from spica_async.bus.port import (
    DeadLetter,
    DeadLetterReason,
    Delivery,
    DeliveryLostError,
    Message,
    Settlement,
)
from spica_async.bus.rabbitmq.channels import ConsumerChannel
from spica_async.bus.rabbitmq.errors import TransientError, translated


def read_message(incoming: DeliveredMessage) -> Message:
    """What was published; foreign messages may lack an id or a type, which are empty then."""
    beside = incoming.header.properties
    return Message(
        incoming.body,
        beside.message_id or "",
        beside.message_type or "",
        beside.reply_to or None,
    )


class RabbitDelivery(Delivery):
    """A delivery that can be settled on the channel that it came by, and on no other.

    Args:
        queue: that it came from.
        channel: that it came by.
        incoming: as the library has it.
    """

    def __init__(self, queue: str, channel: ConsumerChannel, incoming: DeliveredMessage) -> None:
        headers: Mapping[str, Any] = incoming.header.properties.headers or {}
        # Quorum queues leave it out the first time.
        count = headers.get("x-delivery-count", 0)
        super().__init__(
            read_message(incoming),
            queue,
            delivery_count=count if isinstance(count, int) else 0,
            dead_letter=last_death(headers),
        )
        self._channel = channel
        self._incoming = incoming
        channel.unsettled += 1

    @property
    def is_lost(self) -> bool:
        """See `Delivery.is_lost`."""
        return self._channel.has_ended

    async def _carry_out(self, settlement: Settlement) -> None:
        channel, tag = self._incoming.channel, self._incoming.delivery_tag
        assert tag is not None  # noqa: S101 - for the type checker; it was delivered
        try:
            with translated():
                if settlement is Settlement.ACKED:
                    await channel.basic_ack(tag, wait=False)
                else:
                    requeue = settlement is Settlement.RETURNED
                    await channel.basic_nack(tag, requeue=requeue, wait=False)
        except TransientError as error:
            raise DeliveryLostError(f"{self._shown}: {error}") from error
        self._channel.unsettled -= 1


def last_death(headers: Mapping[str, Any]) -> DeadLetter | None:
    """Where and why a message died last, read from `x-death`; None if it has not died.

    The broker puts the latest death first.
    """
    deaths = headers.get("x-death")
    if not isinstance(deaths, list) or not deaths or not isinstance(deaths[0], Mapping):
        return None
    queue, reason = deaths[0].get("queue"), deaths[0].get("reason")
    try:
        return DeadLetter(str(queue), DeadLetterReason(str(reason)))
    except ValueError:
        return None
