"""A process that is killed while it appends: all that it was told to be written is there."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest
from support import appending
from support.journals import numbers_that_count
from support.postgres import PostgresNode

from spica_async.journal.sql import SqlJournal
from spica_async.storage.address import sqlite_url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "journal.db")
    node: PostgresNode = request.getfixturevalue("postgres")
    return node.url(node.add_database())


async def last_acknowledged(url: str, seconds: float) -> int:
    """Have somebody append, kill it after so long, and return the last number that it was told."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, appending.__file__, url, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    await asyncio.sleep(seconds)
    process.kill()
    told = (await process.stdout.read()).split(b"\n")
    await process.wait()
    # What comes after the last line's end was not told whole.
    return int(told[-2]) if len(told) > 1 else 0


async def test_every_acknowledged_fact_is_there(url: str) -> None:
    chance = random.Random(1)
    known = 0
    for _ in range(4):
        told = await last_acknowledged(url, chance.uniform(0.05, 0.4))
        async with SqlJournal.open(url) as journal:
            there = await numbers_that_count(journal)
        assert there >= max(told, known)
        # At most the one append of which it had not heard yet; none of it, or the whole.
        assert told == 0 or there in {told, told + 3}
        assert there % 3 == 0
        known = there
    assert known > 0
