"""The arguments with which queues and exchanges are declared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel

from spica_async.bus.port import QueueSpec
from spica_async.bus.topology import CONTROL_EXCHANGE, EVENTS_EXCHANGE


@dataclass(frozen=True, slots=True)
class ExchangeSpec:
    """A durable exchange."""

    name: str
    kind: ExchangeType


Spec = QueueSpec | ExchangeSpec

EXCHANGES: Final = (
    ExchangeSpec(EVENTS_EXCHANGE, ExchangeType.TOPIC),
    ExchangeSpec(CONTROL_EXCHANGE, ExchangeType.FANOUT),
)


async def declare(channel: AbstractChannel, spec: Spec, *, passive: bool = False) -> None:
    """Declare a queue or an exchange; if `passive`, only ask whether it exists."""
    if isinstance(spec, ExchangeSpec):
        await channel.declare_exchange(spec.name, spec.kind, durable=True, passive=passive)
    else:
        await channel.declare_queue(
            spec.name, durable=True, passive=passive, arguments=_queue_arguments(spec)
        )


def _queue_arguments(spec: QueueSpec) -> dict[str, Any]:
    arguments: dict[str, Any] = {"x-queue-type": "quorum"}
    if spec.delivery_limit is not None:
        arguments["x-delivery-limit"] = spec.delivery_limit
    if spec.dead_letter_queue is not None:
        arguments |= {
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": spec.dead_letter_queue,
            # Dead letters are confirmed as well; the broker asks for this overflow along with it.
            "x-dead-letter-strategy": "at-least-once",
            "x-overflow": "reject-publish",
        }
    if spec.expires_seconds is not None:
        arguments["x-expires"] = spec.expires_seconds * 1000
    return arguments
