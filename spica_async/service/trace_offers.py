"""Where workers fetch the trace of a sweep, when a broker is in between."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

from schemas.messages import TraceLoad, TraceSource
from spica_async.bus.address import BrokerAddress
from spica_async.bus.broker_options import BrokerOptions
from spica_async.traces.serve import TraceServer, address_towards

_EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104  # workers come from anywhere; they need the token
_LOOPBACK = "127.0.0.1"


def trace_server(options: BrokerOptions) -> AbstractAsyncContextManager[TraceServer]:
    """Serve traces to workers while the context is open.

    Raises:
        InputError: the address cannot be listened at.
    """
    return TraceServer.open(_listening_host(options), options.trace_port)


@asynccontextmanager
async def offered(
    trace: TraceLoad | None, options: BrokerOptions, server: TraceServer | None = None
) -> AsyncIterator[TraceLoad | None]:
    """Serve a trace, and name in it the places where workers can fetch it.

    Args:
        trace: the trace of the sweep; none: there is nothing to offer.
        options: the address to serve it at, and other addresses of it.
        server: serves it; none: a server for this trace alone.

    Raises:
        InputError: it cannot be served at the given address.
    """
    if trace is None:
        yield None
        return
    advertised = _listening_host(options)
    if advertised in _EVERY_ADDRESS:
        advertised = await asyncio.to_thread(_own_address, options.address)
    async with AsyncExitStack() as stack:
        if server is None:
            server = await stack.enter_async_context(trace_server(options))
        own = await stack.enter_async_context(server.offering(trace, advertised_host=advertised))
        elsewhere = [TraceSource(url=url) for url in options.trace_urls]
        yield trace.model_copy(update={"sources": [*elsewhere, own]})


def _listening_host(options: BrokerOptions) -> str:
    return options.trace_host or (_LOOPBACK if options.address.is_loopback else _EVERY_ADDRESS[0])


def _own_address(broker: BrokerAddress) -> str:
    """The address of this machine on its way to the broker, or else its name."""
    try:
        return address_towards(broker.host, broker.port)
    except OSError:
        return socket.gethostname()
