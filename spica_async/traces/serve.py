"""Serves the traces of sweeps to workers on other hosts, which show the token of a trace."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Final

import structlog
from pydantic import SecretStr

from schemas.messages import TraceLoad, TraceSource
from spica_async.addresses import base_url, listen
from spica_async.errors import InputError, file_problem
from spica_async.processes.threads import with_files

if TYPE_CHECKING:
    from spica_async.traces.answers import Offer

_TOKEN_BYTES: Final = 32
# A worker gives up earlier; this frees the place of one that was stopped in the middle.
_DOWNLOAD_SECONDS: Final = 300.0
_SHUTDOWN_SECONDS: Final = 1

log = structlog.get_logger(__name__)


class TraceServer:
    """One address at which traces are fetched, by any number of sweeps' workers.

    What is answered are GET and HEAD of `/traces/<sha256>`, ranges included. Without the token of
    a trace that is offered the answer is 401, with it but for another digest 404, and 410 for a
    file that has changed since it was offered.

    Attributes:
        port: where it listens.
    """

    def __init__(self, port: int, offers: dict[str, Offer]) -> None:
        self.port = port
        self._offers = offers

    @classmethod
    @asynccontextmanager
    async def open(
        cls, host: str, port: int = 0, *, download_seconds: float = _DOWNLOAD_SECONDS
    ) -> AsyncIterator[TraceServer]:
        """Listen as long as the context; nothing is offered at first.

        Args:
            host: name or address to listen at; `0.0.0.0` for all of IPv4, `::` for all of IPv6.
            port: 0 takes any that is free.
            download_seconds: the most that one download may take.

        Raises:
            InputError: the address cannot be listened at.
        """
        # Heavy, and only needed where there is a broker.
        from spica_async.http_server import serving  # noqa: PLC0415  # as said above
        from spica_async.traces.answers import application  # noqa: PLC0415  # as said above

        offers: dict[str, Offer] = {}
        app = application(offers, download_seconds=download_seconds)
        with closing(await listen(host, port, prefix="trace-")) as listener:
            server = cls(listener.getsockname()[1], offers)
            async with serving(app, listener, asyncio.Event(), shutdown_seconds=_SHUTDOWN_SECONDS):
                yield server

    @asynccontextmanager
    async def offering(
        self, load: TraceLoad, *, advertised_host: str
    ) -> AsyncIterator[TraceSource]:
        """Offer a trace as long as the context, under a token of its own.

        Args:
            load: a trace that lies at its path.
            advertised_host: stands in the URL.

        Raises:
            InputError: the trace cannot be read.
        """
        from spica_async.traces.answers import Offer  # noqa: PLC0415  # as above

        try:
            offer = await with_files(Offer.of, load)
        except OSError as error:
            reason = file_problem(error)
            raise InputError(f"workload.trace_path: {error.filename}: {reason}") from error
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        url = f"{base_url(advertised_host, self.port)}/traces/{load.sha256}"
        self._offers[token] = offer
        try:
            log.info("coordinator.trace_served", url=url)
            yield TraceSource(url=url, token=SecretStr(token))
        finally:
            del self._offers[token]


def address_towards(host: str, port: int) -> str:
    """This machine's own address on the way to another; nothing is sent.

    Raises:
        OSError: the host's name is unknown, or there is no way to it.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
