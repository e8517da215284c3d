"""Serves a sweep's trace to workers on other hosts, by digest and to who has the token."""

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

log = structlog.get_logger(__name__)


@asynccontextmanager
async def serving(
    load: TraceLoad,
    *,
    host: str,
    port: int = 0,
    advertised_host: str | None = None,
    download_seconds: float = _DOWNLOAD_SECONDS,
) -> AsyncIterator[TraceSource]:
    """Serve a trace as long as the context, and give where a worker may fetch it.

    What is answered are GET and HEAD of `/traces/<sha256>`, ranges included. Without the token the
    answer is 401, for another digest 404, and 410 for a file that has changed since it was offered.

    Args:
        load: a trace that lies at its path.
        host: name or address to listen at; `0.0.0.0` for all of IPv4, `::` for all of IPv6.
        port: 0 takes any that is free.
        advertised_host: stands in the URL in place of `host`.
        download_seconds: the most that one download may take.

    Raises:
        InputError: the address cannot be listened at, or the trace cannot be read.
    """
    from aiohttp import web  # noqa: PLC0415 - heavy, and only needed where there is a broker

    from spica_async.traces.answers import Offer, application  # noqa: PLC0415 - as above

    try:
        offers = {load.sha256: Offer.of(load)}
    except OSError as error:
        reason = _reason(error)
        raise InputError(f"workload.trace_path: {error.filename}: {reason}") from error
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    with closing(await _listen(host, port)) as listener:
        base = _base_url(advertised_host or host, listener.getsockname()[1])
        source = TraceSource(url=f"{base}/traces/{load.sha256}", token=SecretStr(token))
        runner = web.AppRunner(
            application(offers, token, download_seconds=download_seconds),
            access_log=None,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            log.info("coordinator.trace_served", url=source.url)
            yield source
        finally:
            await runner.cleanup()


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
        InputError: as `serving`.
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
