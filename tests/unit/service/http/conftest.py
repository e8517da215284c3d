"""A daemon to ask, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, MutableMapping
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
