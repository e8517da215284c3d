"""The implementations that have to keep the contract of `spica_async.bus.port`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Bus

BusFactory = Callable[[], AbstractAsyncContextManager[Bus]]
"""Opens a bus without any queue, apart from what other tests use."""


@asynccontextmanager
async def memory_bus() -> AsyncIterator[Bus]:
    yield MemoryBus()


@pytest.fixture(params=[pytest.param(memory_bus, id="memory")])
def bus_factory(request: pytest.FixtureRequest) -> BusFactory:
    factory: BusFactory = request.param
    return factory


@pytest.fixture
async def bus(bus_factory: BusFactory) -> AsyncIterator[Bus]:
    async with bus_factory() as opened:
        yield opened
