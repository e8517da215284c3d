"""The databases that have to keep the contract of `spica_async.evaluate.cache.port`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from support.postgres import OpensTables

from spica_async.evaluate.cache.sql import SqlResultCache


@pytest.fixture
def opens_tables() -> OpensTables:
    return SqlResultCache.open


@pytest.fixture
async def cache(url: str) -> AsyncIterator[SqlResultCache]:
    async with SqlResultCache.open(url) as opened:
        yield opened
