"""What of the shared queues and exchanges exists on a broker, and whether just so."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from spica_async.bus.address import BrokerAddress
from spica_async.bus.port import AccessRefusedError, BusUnavailableError, QueueSpec
from spica_async.bus.rabbitmq.bus import DEFAULT_CONNECT_SECONDS
from spica_async.bus.rabbitmq.declaring import (
    Declaration,
    exchange_declarations,
    queue_declaration,
)
from spica_async.bus.rabbitmq.errors import (
    NotFoundError,
    OtherArgumentsError,
    TransientError,
    translated,
)
from spica_async.bus.rabbitmq.link import Link, close_channel


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
) -> Iterator[tuple[Literal["exchange", "queue"], str, Declaration]]:
    for name, declaration in exchange_declarations():
        yield "exchange", name, declaration
    for spec in queues:
        yield "queue", spec.name, queue_declaration(spec)


async def _standing(link: Link, declare: Declaration, *, create: bool) -> tuple[Standing, str]:
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


async def _ask(link: Link, declare: Declaration, *, passive: bool) -> None:
    # Each on a channel of its own, since a refusal closes it.
    channel = await link.open_channel()
    try:
        with translated():
            await declare(channel, passive=passive)
    finally:
        await close_channel(channel)
