"""Files of SQLite's that a power cut or a broken disk has left behind."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.journals import LONG, new_sweep, numbers_that_count, some_facts

from spica_async.journal.port import SweepUnknownError
from spica_async.journal.sql import SqlJournal
from spica_async.storage.errors import StorageDamagedError

_FRAME = 24 + 4096
"""Bytes of a page in the write-ahead log, after the log's own 32."""


@dataclass(frozen=True)
class Remains:
    """What stands on disk while a journal is open.

    Attributes:
        database: The bytes of the file.
        log: Those of its write-ahead log.
        acknowledged: For each append the log's length after it, and the number of the last fact;
            the first stands for the new sweep.
    """

    database: bytes
    log: bytes
    acknowledged: list[tuple[int, int]]

    def least(self, length: int) -> int | None:
        """How many facts a log of so many bytes must have; None if not even the sweep."""
        return max((last for size, last in self.acknowledged if size <= length), default=None)


def log_of(path: Path) -> Path:
    return path.with_name(f"{path.name}-wal")


async def make(path: Path) -> Remains:
    acknowledged = []

    def acknowledge(last: int) -> None:
        acknowledged.append((log_of(path).stat().st_size, last))

    async with SqlJournal.open(path) as journal:
        await journal.create(new_sweep(), LONG)
        acknowledge(0)
        last = 0
        for count in [1, 1, 2, 5, 1, 100, 1, 3, 1, 1, 30, 1]:
            last = await journal.append("one", "me", some_facts(last, count), after=last)
            acknowledge(last)
        return look(path, acknowledged)


def look(path: Path, acknowledged: list[tuple[int, int]]) -> Remains:
    return Remains(path.read_bytes(), log_of(path).read_bytes(), acknowledged)


@pytest.fixture
async def remains(tmp_path: Path) -> Remains:
    return await make(tmp_path / "whole.db")


async def found_in(folder: Path, database: bytes, log: bytes) -> int | None:
    """How many facts a journal has of which this is left; None without the sweep."""
    path = folder / "journal.db"
    path.with_name("journal.db-shm").unlink(missing_ok=True)
    path.write_bytes(database)
    log_of(path).write_bytes(log)
    async with SqlJournal.open(path) as journal:
        try:
            there = await numbers_that_count(journal)
        except SweepUnknownError:
            return None
        # It can be written, too.
        await journal.append("one", "me", some_facts(there, 1), after=there)
        assert await numbers_that_count(journal) == there + 1
        return there


async def test_a_log_that_is_cut_at_any_byte(remains: Remains, tmp_path: Path) -> None:
    whole = len(remains.log)
    chance = random.Random(1)
    cuts = {0, 1, 31, 32, 33, whole, *(chance.randrange(whole) for _ in range(60))}
    for size, _ in remains.acknowledged:
        cuts |= {size - 1, size, min(size + 1, whole), size - 4096, size - _FRAME}
    for cut in sorted(cuts):
        there = await found_in(tmp_path, remains.database, remains.log[:cut])
        # No more either: what was not whole is not there.
        assert there == remains.least(cut), cut


async def test_a_log_with_a_wrong_byte(remains: Remains, tmp_path: Path) -> None:
    chance = random.Random(2)
    for place in [0, 20, 31, *(chance.randrange(len(remains.log)) for _ in range(40))]:
        log = bytearray(remains.log)
        log[place] ^= 1 << chance.randrange(8)
        there = await found_in(tmp_path, remains.database, bytes(log))
        least = remains.least(place)
        assert there == least or (there or -1) > (least or -1), place


async def test_rubbish_behind_the_log(remains: Remains, tmp_path: Path) -> None:
    log = remains.log + random.Random(3).randbytes(3 * _FRAME + 7)
    assert await found_in(tmp_path, remains.database, log) == remains.acknowledged[-1][1]


def closed(folder: Path) -> bytes:
    """All is in the one file once nobody has it open any more."""
    assert not log_of(folder / "whole.db").exists()
    return (folder / "whole.db").read_bytes()


async def test_a_file_that_is_cut_is_said_to_be_damaged(tmp_path: Path) -> None:
    await make(tmp_path / "whole.db")
    whole = closed(tmp_path)
    assert await found_in(tmp_path, whole, b"") == 147
    # One byte is as good as none for SQLite, and a last page that is not whole is filled up.
    for cut in range(2, len(whole) - 4096 + 1, 1021):
        with pytest.raises(StorageDamagedError):
            await found_in(tmp_path, whole[:cut], b"")


async def test_pages_of_rubbish_are_said_to_be_damage(tmp_path: Path) -> None:
    await make(tmp_path / "whole.db")
    whole = closed(tmp_path)
    damaged = 0
    for start in range(0, len(whole), 4096):
        broken = whole[:start] + random.Random(start).randbytes(4096) + whole[start + 4096 :]
        try:
            assert await found_in(tmp_path, broken, b"") == 147
        except StorageDamagedError:
            damaged += 1
    assert damaged > 3


async def test_a_fact_that_is_missing_is_noticed(tmp_path: Path) -> None:
    await make(tmp_path / "whole.db")
    other = sqlite3.connect(tmp_path / "whole.db")
    other.execute("DELETE FROM facts WHERE number = 100")
    other.commit()
    other.close()
    async with SqlJournal.open(tmp_path / "whole.db") as journal:
        with pytest.raises(StorageDamagedError, match="sweep one has no fact 100"):
            await numbers_that_count(journal)
