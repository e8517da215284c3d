"""A folder in which fates are laid out, and worker processes on a virtual host of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.broker import VirtualHost
from support.faults.fates import Fates
from support.faults.workers import Workers
from support.proxy import TcpProxy, tcp_proxy


@pytest.fixture
def fates(tmp_path: Path) -> Fates:
    return Fates(tmp_path / "fates")


@pytest.fixture
async def workers(broker_vhost: VirtualHost, fates: Fates) -> AsyncIterator[Workers]:
    async with Workers.open(broker_vhost.url, fates) as opened:
        yield opened


@pytest.fixture
async def proxy(broker_vhost: VirtualHost) -> AsyncIterator[TcpProxy]:
    async with tcp_proxy(broker_vhost.node.port) as running:
        yield running
