"""The databases that have to keep the contract of `spica_async.journal.port`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest
from support.postgres import OpensTables

from spica_async.journal.port import Journal
from spica_async.journal.sql import SqlJournal

OpenJournal = Callable[[], AbstractAsyncContextManager[Journal]]
"""Opens one and the same journal, as often as it is called."""


@pytest.fixture
def opens_tables() -> OpensTables:
    return SqlJournal.open


@pytest.fixture
def open_journal(url: str) -> OpenJournal:
    return partial(SqlJournal.open, url)


@pytest.fixture
async def journal(open_journal: OpenJournal) -> AsyncIterator[Journal]:
    async with open_journal() as opened:
        yield opened
