"""The implementations that have to keep the contract of `spica_async.bus.port`."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from support.broker import BrokerNode

from spica_async.bus.address import BrokerAddress
from spica_async.bus.inbox import MOST_UNREAD, Unread
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Bus
from spica_async.bus.rabbitmq.bus import RabbitBus

BusFactory = Callable[..., AbstractAsyncContextManager[Bus]]
"""Opens a bus without any queue, apart from what other tests use; may be given `unread`."""


@asynccontextmanager
async def memory_bus(unread: Unread = MOST_UNREAD) -> AsyncIterator[Bus]:
    yield MemoryBus(unread)


@pytest.fixture
def rabbit_bus(request: pytest.FixtureRequest) -> BusFactory:
    node: BrokerNode = request.getfixturevalue("broker")

    @asynccontextmanager
    async def open_bus(unread: Unread = MOST_UNREAD) -> AsyncIterator[Bus]:
        vhost = f"contract-{secrets.token_hex(4)}"
        node.add_vhost(vhost)
        address = BrokerAddress.from_options(node.url(vhost=vhost))
        async with RabbitBus.open(
            address,
            name="contract",
            private_queues="spica.test",
            patience_seconds=60,
            unread=unread,
        ) as bus:
            yield bus

    return open_bus


@pytest.fixture(params=["memory", "rabbitmq"])
def bus_factory(request: pytest.FixtureRequest) -> BusFactory:
    if request.param == "memory":
        return memory_bus
    factory: BusFactory = request.getfixturevalue("rabbit_bus")
    return factory


@pytest.fixture
async def bus(bus_factory: BusFactory) -> AsyncIterator[Bus]:
    async with bus_factory() as opened:
        yield opened
