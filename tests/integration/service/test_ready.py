"""A daemon is ready when it can write, not when it can read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.daemons import daemon
from support.postgres import PostgresNode

from spica_async.journal.port import Journal
from spica_async.journal.sql import SqlJournal
from spica_async.service import write_probe
from spica_async.service.write_probe import WriteProbe
from spica_async.storage.errors import StorageFullError

NOT_WRITABLE = ["the journal cannot be written"]


@pytest.fixture
def _no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_probe, "_FRESH_SECONDS", 0.0)


@pytest.mark.usefixtures("_no_memory")
async def test_a_server_that_only_reads(postgres: PostgresNode, tmp_path: Path) -> None:
    url = postgres.url(postgres.add_database())
    async with daemon(url, tmp_path) as run:
        assert await run.manager.troubles() == []
        await asyncio.to_thread(postgres.only_read, on=True)
        assert await run.manager.troubles() == NOT_WRITABLE
        # It can be read all the same.
        assert (await run.manager.sweeps()).sweeps == []
        await asyncio.to_thread(postgres.only_read, on=False)
        assert await run.manager.troubles() == []


@pytest.mark.usefixtures("_no_memory")
async def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: Journal) -> None:
        raise StorageFullError("no room")

    async with daemon(tmp_path / "journal", tmp_path) as run:
        assert await run.manager.troubles() == []
        monkeypatch.setattr(SqlJournal, "check_writable", fail)
        assert await run.manager.troubles() == NOT_WRITABLE


class SlowJournal:
    """Answers once it is told to."""

    def __init__(self) -> None:
        self.looks = 0
        self.answers = asyncio.Event()

    async def check_writable(self) -> None:
        self.looks += 1
        await self.answers.wait()


async def test_many_who_ask_at_once_cost_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_probe, "_PATIENCE_SECONDS", 0.05)
    journal = SlowJournal()
    probe = WriteProbe(journal)  # type: ignore[arg-type]  # what a probe needs of one
    async with probe.running():
        # Whoever asks is answered, however long the database takes.
        assert await asyncio.gather(*(probe.can_write() for _ in range(5))) == [False] * 5
        journal.answers.set()
        assert await asyncio.gather(*(probe.can_write() for _ in range(5))) == [True] * 5
        assert journal.looks == 1
        journal.answers.clear()
    assert len(asyncio.all_tasks()) == 1


async def test_no_look_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_probe, "_PATIENCE_SECONDS", 0.05)
    probe = WriteProbe(SlowJournal())  # type: ignore[arg-type]  # as above
    async with probe.running():
        assert not await probe.can_write()
    assert len(asyncio.all_tasks()) == 1
