"""How a coordinator uses a broker, and its connection to it."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

from schemas.config import SmartSearchConfig
from spica_async.bus.address import BrokerAddress
from spica_async.bus.limits import HOLD_MARGIN_SECONDS
from spica_async.bus.port import Bus, BusError
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.rabbitmq.state import OnState
from spica_async.errors import InputError
from spica_async.traces.sources import DEFAULT_SCHEMES, is_chained, scheme_of


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
        """What the user should know of these options, each in a line."""
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
def broker_errors(address: BrokerAddress) -> Iterator[None]:
    """Have each `BusError` name the broker."""
    try:
        yield
    except BusError as error:
        why = str(error).removeprefix(f"{address}: ")
        raise type(error)(f"{address}: {why}") from error


@asynccontextmanager
async def connected(
    address: BrokerAddress,
    *,
    role: str,
    private_queues: str,
    on_state: OnState | None = None,
) -> AsyncIterator[Bus]:
    """Open a bus over the broker.

    Args:
        address: where the broker is.
        role: a part of the connections' names.
        private_queues: how the names of this bus's own queues begin.
        on_state: called with every change of the bus's state.

    Raises:
        BusError: no connection came about.
    """
    async with AsyncExitStack() as stack:
        with broker_errors(address):
            bus = await stack.enter_async_context(
                RabbitBus.open(
                    address,
                    name=f"spica-{role}-{socket.gethostname()}-{os.getpid()}",
                    private_queues=private_queues,
                    on_state=on_state,
                )
            )
        yield bus
