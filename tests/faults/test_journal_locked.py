"""A database that somebody else holds for longer than anybody waits."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from support.journals import LONG, fact, new_sweep, numbers_that_count, some_facts
from support.postgres import PostgresNode

from spica_async.journal.port import Journal
from spica_async.journal.sql import SqlJournal
from spica_async.storage.errors import StorageBusyError

_HOLD = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], isolation_level=None)
other.execute(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""
BUSY_SECONDS = 0.3


@asynccontextmanager
async def held(*command: str) -> AsyncIterator[None]:
    """While the context is open another process holds what it says that it holds."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"held\n"
        yield
    finally:
        process.stdin.close()
        await process.wait()


async def check_patience(journal: Journal) -> None:
    before = time.monotonic()
    for _ in range(2):
        with pytest.raises(StorageBusyError):
            await journal.append("one", "me", [fact(2)], after=1)
        with pytest.raises(StorageBusyError):
            await journal.take("one", LONG)
    assert 4 * BUSY_SECONDS < time.monotonic() - before < 4 * BUSY_SECONDS + 5
    # Who reads does not wait.
    assert await numbers_that_count(journal) == 1


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
async def test_a_file_that_another_process_locks(tmp_path: Path, begin: str) -> None:
    path = tmp_path / "journal.db"
    async with SqlJournal.open(path, busy_seconds=BUSY_SECONDS) as journal:
        await journal.create(new_sweep(), LONG)
        await journal.append("one", "me", [fact(1)], after=0)
        async with held(sys.executable, "-c", _HOLD, str(path), begin):
            await check_patience(journal)
            async with SqlJournal.open(path) as other:
                assert await numbers_that_count(other) == 1
        await journal.append("one", "me", [fact(2)], after=1)
        assert await numbers_that_count(journal) == 2


async def test_a_cancelled_append_does_not_hold_the_file(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    async with SqlJournal.open(path) as journal:
        await journal.create(new_sweep(), LONG)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        writing = asyncio.ensure_future(journal.append("one", "me", [fact(1)], after=0))
        waiting = asyncio.ensure_future(journal.append("one", "me", [fact(1)], after=0))
        await asyncio.sleep(0.2)
        writing.cancel()
        waiting.cancel()
        await asyncio.wait([waiting], timeout=1)
        # It had not begun yet.
        assert waiting.cancelled()
        other.rollback()
        other.close()
        await asyncio.wait([writing], timeout=5)
        assert writing.cancelled()
        assert await journal.append("one", "me", some_facts(0, 1), after=0) == 1
        assert await numbers_that_count(journal) == 1


async def test_a_row_that_another_client_locks(postgres: PostgresNode) -> None:
    name = postgres.add_database()
    async with SqlJournal.open(postgres.url(name), busy_seconds=BUSY_SECONDS) as journal:
        await journal.create(new_sweep(), LONG)
        await journal.append("one", "me", [fact(1)], after=0)
        other = await asyncpg.connect(postgres.url(name))
        async with other.transaction():
            await other.execute("SELECT FROM sweeps FOR UPDATE")
            await check_patience(journal)
        await other.close()
        await journal.append("one", "me", [fact(2)], after=1)
        assert await numbers_that_count(journal) == 2
