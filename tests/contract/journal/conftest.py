"""The databases that have to keep the contract of `spica_async.journal.port`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest
from support.postgres import PostgresNode

from spica_async.journal.port import Journal
from spica_async.journal.sql import SqlJournal
from spica_async.storage.address import sqlite_url

OpenJournal = Callable[[], AbstractAsyncContextManager[Journal]]
"""Opens one and the same journal, as often as it is called."""


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of an empty store."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "journal.sqlite3")
    node: PostgresNode = request.getfixturevalue("postgres")
    return node.url(node.add_database())


@pytest.fixture
def open_journal(url: str) -> OpenJournal:
    return partial(SqlJournal.open, url)


@pytest.fixture
async def journal(open_journal: OpenJournal) -> AsyncIterator[Journal]:
    async with open_journal() as opened:
        yield opened
