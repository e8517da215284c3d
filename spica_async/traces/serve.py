"""Serves the traces of sweeps to workers on other hosts, by digest and to who has the token."""

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
from spica_async.errors import InputError
from spica_async.processes.threads import with_files

if TYPE_CHECKING:
    from spica_async.traces.answers import Offer

_TOKEN_BYTES: Final = 32
# A worker gives up earlier; this frees the place of one that was stopped in the middle.
_DOWNLOAD_SECONDS: Final = 300.0
_SHUTDOWN_SECONDS: Final = 1.0

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
        from aiohttp import web  # noqa: PLC0415 - heavy, and only needed where there is a broker

        from spica_async.traces.answers import application  # noqa: PLC0415 - as above

        offers: dict[str, Offer] = {}
        with closing(await _listen(host, port)) as listener:
            runner = web.AppRunner(
                application(offers, download_seconds=download_seconds),
                access_log=None,
                shutdown_timeout=_SHUTDOWN_SECONDS,
            )
            await runner.setup()
            try:
                await web.SockSite(runner, listener).start()
                yield cls(listener.getsockname()[1], offers)
            finally:
                await runner.cleanup()

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
        from spica_async.traces.answers import Offer  # noqa: PLC0415 - as above

        try:
            offer = await with_files(Offer.of, load)
        except OSError as error:
            reason = _reason(error)
            raise InputError(f"workload.trace_path: {error.filename}: {reason}") from error
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        url = f"{_base_url(advertised_host, self.port)}/traces/{load.sha256}"
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


async def _listen(host: str, port: int) -> socket.socket:
    """A listener at the first address of `host`: one port, which is then the one to advertise.

    Raises:
        InputError: it cannot be had.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except socket.gaierror as error:
        raise InputError(f"--trace-host: {host}: {_reason(error)}") from error
    except (OSError, OverflowError) as error:
        where = f"--trace-host {host}, --trace-port {port}"
        raise InputError(f"{where}: cannot listen there: {_reason(error)}") from error


def _base_url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error)).lower()
