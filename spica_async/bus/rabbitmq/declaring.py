"""The arguments with which queues and exchanges are declared, by whoever does it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final, Protocol

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel

from spica_async.bus.port import QueueSpec
from spica_async.bus.topology import CONTROL_EXCHANGE, EVENTS_EXCHANGE

_EXCHANGES: Final = ((EVENTS_EXCHANGE, ExchangeType.TOPIC), (CONTROL_EXCHANGE, ExchangeType.FANOUT))


class Declaration(Protocol):
    """Declares one queue or exchange on a channel, or only asks whether it exists."""

    async def __call__(self, channel: AbstractChannel, *, passive: bool) -> None:
        """Declare it, unless `passive`: then ask."""


def exchange_declarations() -> Iterator[tuple[str, Declaration]]:
    """The name of each exchange, and how it is declared."""
    for name, kind in _EXCHANGES:
        yield name, partial(_declare_exchange, name, kind)


def queue_declaration(spec: QueueSpec) -> Declaration:
    """How a queue is declared that does what the specification says."""
    return partial(_declare_queue, spec)


async def _declare_exchange(
    name: str, kind: ExchangeType, channel: AbstractChannel, *, passive: bool
) -> None:
    await channel.declare_exchange(name, kind, durable=True, passive=passive)


async def _declare_queue(spec: QueueSpec, channel: AbstractChannel, *, passive: bool) -> None:
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
