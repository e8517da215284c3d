"""What a coordinator does differently with a broker: it connects, limits, and offers traces."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

from schemas.config import SmartSearchConfig
from schemas.messages import TraceLoad, TraceSource
from spica_async.bus.address import BrokerAddress
from spica_async.bus.limits import HOLD_MARGIN_SECONDS
from spica_async.bus.port import Bus, BusError, BusUnavailableError
from spica_async.bus.rabbitmq import RabbitBus
from spica_async.bus.rabbitmq.state import OnState
from spica_async.errors import BusAwayError, InputError, SpicaError
from spica_async.traces.serve import TraceServer, address_towards
from spica_async.traces.sources import DEFAULT_SCHEMES, is_chained, scheme_of

_EVERY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104  # workers come from anywhere; they need the token
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """How a sweep is to use a broker.

    Attributes:
        address: of the broker.
        hard_limit_seconds: the longest that an evaluation may take.
        trace_host: where to serve traces; none: wherever the broker's clients may come from.
        trace_port: 0 for any.
        trace_urls: where else workers may fetch the trace, before they ask here.
    """

    address: BrokerAddress
    hard_limit_seconds: float
    trace_host: str | None = None
    trace_port: int = 0
    trace_urls: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for url in self.trace_urls:
            if is_chained(url):
                raise InputError("--trace-url: only a single URL is taken, without ::")
            if not scheme_of(url):
                raise InputError(f"--trace-url: {url}: not a URL")

    @property
    def notes(self) -> list[str]:
        """What is to be known of these options, each in a line."""
        schemes = {scheme_of(url): None for url in self.trace_urls}
        return [
            f"--trace-url: workers fetch {scheme}:// only with {scheme} in their --trace-schemes"
            for scheme in schemes
            if scheme not in DEFAULT_SCHEMES
        ]

    def limited(self, config: SmartSearchConfig) -> SmartSearchConfig:
        """The configuration with the hard limit for evaluations that had none.

        Raises:
            InputError: it allows longer evaluations than the broker would.
        """
        asked, limit = config.sweep.max_eval_seconds, self.hard_limit_seconds
        if asked is not None and asked > limit:
            raise InputError(
                f"sweep.max_eval_seconds: {asked:g} s is over the hard limit of {limit:g} s;"
                " raise --hard-limit-seconds here and at the workers, and keep it"
                f" {HOLD_MARGIN_SECONDS:g} s below the broker's consumer_timeout"
            )
        sweep = config.sweep.model_copy(update={"max_eval_seconds": asked or limit})
        return config.model_copy(update={"sweep": sweep})


@contextmanager
def naming(address: BrokerAddress) -> Iterator[None]:
    """Let what a bus raises name the broker, once.

    Raises:
        SpicaError: in place of each `BusError`; a `BusAwayError` where it is worth trying again.
    """
    try:
        yield
    except BusError as error:
        told = str(error).removeprefix(f"{address}: ")
        kind = BusAwayError if isinstance(error, BusUnavailableError) else SpicaError
        raise kind(f"{address}: {told}") from error


@asynccontextmanager
async def connected(
    address: BrokerAddress,
    *,
    role: str,
    private_queues: str,
    on_state: OnState | None = None,
) -> AsyncIterator[Bus]:
    """A bus over the broker.

    Args:
        address: of the broker.
        role: of this connection, a part of its name.
        private_queues: how the names of this bus's own queues begin.
        on_state: told of every change of the bus's state.

    Raises:
        SpicaError: no connection came about.
    """
    async with AsyncExitStack() as stack:
        with naming(address):
            bus = await stack.enter_async_context(
                RabbitBus.open(
                    address,
                    name=f"spica-{role}-{socket.gethostname()}-{os.getpid()}",
                    private_queues=private_queues,
                    on_state=on_state,
                )
            )
        yield bus


@asynccontextmanager
async def trace_server(options: BrokerOptions) -> AsyncIterator[TraceServer]:
    """Listen where workers are to fetch traces, as long as the context.

    Raises:
        InputError: the address cannot be listened at.
    """
    async with TraceServer.open(_listening_host(options), options.trace_port) as server:
        yield server


@asynccontextmanager
async def offered(
    trace: TraceLoad | None, options: BrokerOptions, server: TraceServer | None = None
) -> AsyncIterator[TraceLoad | None]:
    """The trace with the places where workers can fetch it, one of which is served from here.

    Args:
        trace: none: there is nothing to offer.
        options: say where it is served, and where else it is.
        server: that serves it; none: one of its own.

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
    """What this machine is called by those who reach the broker as it does."""
    try:
        return address_towards(broker.host, broker.port)
    except OSError:
        return socket.gethostname()
