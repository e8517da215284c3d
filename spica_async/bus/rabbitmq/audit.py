"""What of the shared queues and exchanges exists on a broker, and whether just so."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Literal, Protocol

from aio_pika import ExchangeType
from aio_pika.abc import AbstractChannel

from spica_async.bus.address import BrokerAddress
from spica_async.bus.port import AccessRefusedError, BusUnavailableError, QueueSpec
from spica_async.bus.rabbitmq.bus import (
    DEFAULT_CONNECT_SECONDS,
    EXCHANGES,
    queue_arguments,
)
from spica_async.bus.rabbitmq.errors import (
    NotFoundError,
    OtherArgumentsError,
    TransientError,
    translated,
)
from spica_async.bus.rabbitmq.link import Link, close_channel


class _Declare(Protocol):
    def __call__(self, channel: AbstractChannel, *, passive: bool) -> Awaitable[None]:
        """Declare something, or only ask whether it exists."""


class Standing(StrEnum):
    """How a queue or an exchange stands to what it should be."""

    OK = "ok"
    EXISTS = "exists"
    """This user may not compare its arguments."""
    MISSING = "missing"
    OTHER_ARGUMENTS = "other arguments"
    NO_RIGHT = "no right"
    """This user may not declare it, or not even look."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One queue or exchange; `detail` is what the broker said of it, if anything."""

    kind: Literal["exchange", "queue"]
    name: str
    standing: Standing
    detail: str = ""


async def audit(
    address: BrokerAddress,
    queues: Iterable[QueueSpec],
    *,
    create: bool,
    connect_seconds: float = DEFAULT_CONNECT_SECONDS,
) -> list[Finding]:
    """Compare the exchanges and these queues with what they should be.

    Args:
        address: of the broker.
        queues: each after its dead-letter queue.
        create: make what is missing.
        connect_seconds: how long to wait for the connection.

    Raises:
        AccessRefusedError: the broker refuses the user or the virtual host.
        BusUnavailableError: it could not be reached, or was lost meanwhile.
    """
    async with Link.open(
        address, "spica-topology", lambda *_: None, connect_seconds=connect_seconds
    ) as link:
        try:
            return [
                Finding(kind, name, *await _standing(link, declare, create=create))
                for kind, name, declare in _subjects(queues)
            ]
        except TransientError as error:
            raise BusUnavailableError(f"{address}: {error}") from error


def _subjects(
    queues: Iterable[QueueSpec],
) -> Iterator[tuple[Literal["exchange", "queue"], str, _Declare]]:
    for exchange, kind in EXCHANGES:
        yield "exchange", exchange, partial(_declare_exchange, exchange, kind)
    for spec in queues:
        yield "queue", spec.name, partial(_declare_queue, spec)


async def _declare_exchange(
    name: str, kind: ExchangeType, channel: AbstractChannel, *, passive: bool
) -> None:
    await channel.declare_exchange(name, kind, durable=True, passive=passive)


async def _declare_queue(spec: QueueSpec, channel: AbstractChannel, *, passive: bool) -> None:
    await channel.declare_queue(
        spec.name, durable=True, passive=passive, arguments=queue_arguments(spec)
    )


async def _standing(link: Link, declare: _Declare, *, create: bool) -> tuple[Standing, str]:
    try:
        if not create:
            await _ask(link, declare, passive=True)
    except NotFoundError:
        return Standing.MISSING, ""
    except AccessRefusedError as error:
        return Standing.NO_RIGHT, str(error)
    try:
        # Of what exists this only compares the arguments.
        await _ask(link, declare, passive=False)
    except OtherArgumentsError as error:
        return Standing.OTHER_ARGUMENTS, str(error)
    except AccessRefusedError as error:
        return Standing.NO_RIGHT if create else Standing.EXISTS, str(error)
    return Standing.OK, ""


async def _ask(link: Link, declare: _Declare, *, passive: bool) -> None:
    # Each on a channel of its own, since a refusal closes it.
    channel = await link.open_channel()
    try:
        with translated():
            await declare(channel, passive=passive)
    finally:
        await close_channel(channel)
