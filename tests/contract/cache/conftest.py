"""The databases that have to keep the contract of `spica_async.evaluate.cache.port`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.postgres import PostgresNode

from spica_async.evaluate.cache.sql import SqlResultCache
from spica_async.storage.address import sqlite_url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty database."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "results.sqlite3")
    node: PostgresNode = request.getfixturevalue("postgres")
    return node.url(node.add_database())


@pytest.fixture
async def cache(url: str) -> AsyncIterator[SqlResultCache]:
    async with SqlResultCache.open(url) as opened:
        yield opened
