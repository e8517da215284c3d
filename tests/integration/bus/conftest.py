"""A bus on a virtual host of its own, and a diary of its states."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from support.broker import VirtualHost
from support.proxy import TcpProxy, tcp_proxy

from spica_async.bus.address import BrokerAddress
from spica_async.bus.port import QueueSpec
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.rabbitmq.state import BusState

DEAD = QueueSpec("dead")
WORK = QueueSpec("work", delivery_limit=20, dead_letter_queue="dead")
OpenBus = Callable[..., AbstractAsyncContextManager[RabbitBus]]


class Diary:
    """The states that a bus has told, in order, each only when it was new."""

    def __init__(self) -> None:
        self.entries: list[tuple[BusState, str]] = []
        self._written = asyncio.Condition()

    def __call__(self, state: BusState, why: str) -> None:
        self.entries.append((state, why))

    async def until(self, state: BusState) -> str:
        """Wait until the bus is in that state; returns why."""
        async with asyncio.timeout(60):
            while not self.entries or self.entries[-1][0] is not state:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.01)
        return self.entries[-1][1]


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def open_bus(diary: Diary) -> OpenBus:
    """Opens a bus at a URL and declares two queues."""

    @asynccontextmanager
    async def open_at(
        url: str, *, patience_seconds: float = 60, connect_seconds: float = 20
    ) -> AsyncIterator[RabbitBus]:
        async with RabbitBus.open(
            BrokerAddress.from_options(url),
            name="spica-test",
            private_queues="spica.worker.test",
            on_state=diary,
            patience_seconds=patience_seconds,
            connect_seconds=connect_seconds,
        ) as bus:
            await bus.declare_queue(DEAD)
            await bus.declare_queue(WORK)
            yield bus

    return open_at


@pytest.fixture
async def bus(open_bus: OpenBus, broker_vhost: VirtualHost) -> AsyncIterator[RabbitBus]:
    async with open_bus(broker_vhost.url) as opened:
        yield opened


@pytest.fixture
async def proxy(broker_vhost: VirtualHost) -> AsyncIterator[TcpProxy]:
    async with tcp_proxy(broker_vhost.node.port) as running:
        yield running


@pytest.fixture
async def proxied_bus(
    open_bus: OpenBus, proxy: TcpProxy, broker_vhost: VirtualHost
) -> AsyncIterator[RabbitBus]:
    """A bus whose connections go through `proxy`, with the shortest heartbeat there is."""
    async with open_bus(f"{proxy.url(broker_vhost.url)}?heartbeat=1") as opened:
        yield opened
