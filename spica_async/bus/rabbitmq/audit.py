"""What of the shared queues and exchanges exists on a broker, and whether just so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from spica_async.bus.address import BrokerAddress
from spica_async.bus.port import AccessRefusedError, BusUnavailableError, QueueSpec
from spica_async.bus.rabbitmq.bus import DEFAULT_CONNECT_SECONDS
from spica_async.bus.rabbitmq.declaring import EXCHANGES, Spec, declare
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
        connect_seconds: longest wait for the connection.

    Raises:
        AccessRefusedError: the broker refuses the user or the virtual host.
        BusUnavailableError: it could not be reached, or was lost meanwhile.
    """
    specs: list[Spec] = [*EXCHANGES, *queues]
    async with Link.open(
        address, "spica-topology", lambda *_: None, connect_seconds=connect_seconds
    ) as link:
        try:
            return [
                Finding(
                    "queue" if isinstance(spec, QueueSpec) else "exchange",
                    spec.name,
                    *await _standing(link, spec, create=create),
                )
                for spec in specs
            ]
        except TransientError as error:
            raise BusUnavailableError(f"{address}: {error}") from error


async def _standing(link: Link, spec: Spec, *, create: bool) -> tuple[Standing, str]:
    try:
        if not create:
            await _ask(link, spec, passive=True)
    except NotFoundError:
        return Standing.MISSING, ""
    except AccessRefusedError as error:
        return Standing.NO_RIGHT, str(error)
    try:
        # Of what exists this only compares the arguments.
        await _ask(link, spec, passive=False)
    except OtherArgumentsError as error:
        return Standing.OTHER_ARGUMENTS, str(error)
    except AccessRefusedError as error:
        return Standing.NO_RIGHT if create else Standing.EXISTS, str(error)
    return Standing.OK, ""


async def _ask(link: Link, spec: Spec, *, passive: bool) -> None:
    # Each on a channel of its own, since a refusal closes it.
    channel = await link.open_channel()
    try:
        with translated():
            await declare(channel, spec, passive=passive)
    finally:
        await close_channel(channel)
