"""Serves the coordinator's traces to workers on other hosts, by digest and to who has the token."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Final

import structlog
from pydantic import SecretStr

from schemas.messages import TraceLoad, TraceSource
from spica_async.errors import InputError

_TOKEN_BYTES: Final = 32
# A worker gives up earlier; this frees the place of one that was stopped in the middle.
_DOWNLOAD_SECONDS: Final = 300.0
_SHUTDOWN_SECONDS: Final = 1.0
_ALL_ADDRESSES: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to

log = structlog.get_logger(__name__)


class TraceServer:
    """Answers GET and HEAD of `/traces/<sha256>`, ranges included; made with `open`.

    Without the token the answer is 401, for a digest that is not offered 404, and 410 for a file
    that has changed since it was.
    """

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._token = SecretStr(token)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        *loads: TraceLoad,
        host: str,
        port: int = 0,
        advertised_host: str | None = None,
        download_seconds: float = _DOWNLOAD_SECONDS,
    ) -> AsyncIterator[TraceServer]:
        """Serve the loads' files as long as the context.

        Args:
            loads: traces that lie at their paths.
            host: name or address to listen at; `0.0.0.0` for all of IPv4, `::` for all of IPv6.
            port: 0 takes any that is free.
            advertised_host: stands in the URLs; by default `host`, or this machine's name when
                it listens at all addresses.
            download_seconds: the most that one download may take.

        Raises:
            InputError: the address cannot be listened at, or a trace cannot be read.
        """
        from aiohttp import web  # noqa: PLC0415 - heavy, and only needed where there is a broker

        from spica_async.traces.answers import Offer, application  # noqa: PLC0415 - as above

        try:
            offers = {load.sha256: Offer.of(load) for load in loads}
        except OSError as error:
            reason = _reason(error)
            raise InputError(f"workload.trace_path: {error.filename}: {reason}") from error
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        with closing(await _listen(host, port)) as listener:
            fallback = socket.gethostname() if host in _ALL_ADDRESSES else host
            url = _base_url(advertised_host or fallback, listener.getsockname()[1])
            runner = web.AppRunner(
                application(offers, token, download_seconds=download_seconds),
                access_log=None,
                shutdown_timeout=_SHUTDOWN_SECONDS,
            )
            await runner.setup()
            try:
                await web.SockSite(runner, listener).start()
                log.info("coordinator.traces_served", url=url)
                yield cls(url, token)
            finally:
                await runner.cleanup()

    def sources(self, load: TraceLoad) -> list[TraceSource]:
        """Where a worker may fetch this trace from the server."""
        return [TraceSource(url=f"{self.url}/traces/{load.sha256}", token=self._token)]


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
        InputError: as `TraceServer.open`.
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
