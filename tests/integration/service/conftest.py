"""What daemons are tested with: a journal, and a bus of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.broker import VirtualHost
from support.subscribers import bus_at

from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Bus


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite3"


@pytest.fixture(params=["memory", "rabbitmq"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    if request.param == "memory":
        yield MemoryBus()
        return
    vhost: VirtualHost = request.getfixturevalue("broker_vhost")
    async with bus_at(vhost.url, "daemon") as opened:
        yield opened
