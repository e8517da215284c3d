"""A daemon to ask, in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, MutableMapping
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import pytest
from structlog.testing import capture_logs
from support.commands import small_sweep
from support.daemon_http import asking
from support.fake_control import FakeControl

from schemas.config import SmartSearchConfig


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    """What was logged."""
    with capture_logs() as entries:
        yield entries


@pytest.fixture(autouse=True)
def _hasty_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server begins to end, and ends, after a tenth of the pauses that uvicorn makes."""

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 10)

    hasty = SimpleNamespace(**vars(asyncio) | {"sleep": sleep})
    monkeypatch.setattr("uvicorn.server.asyncio", hasty)


@pytest.fixture
def control() -> FakeControl:
    return FakeControl()


@pytest.fixture
async def sweep_id(control: FakeControl) -> str:
    """A sweep that is known already."""
    config = SmartSearchConfig.model_validate(small_sweep())
    return (await control.submit(config, priority=0, use_cache=True)).sweep_id


@pytest.fixture
async def client(control: FakeControl) -> AsyncIterator[httpx.AsyncClient]:
    async with asking(control) as client:
        yield client
