"""Stores of older and newer versions."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine
from support.journals import LONG, fact, new_sweep, numbers_that_count, some_facts
from support.postgres import PostgresNode
from support.tables import look_at

from spica_async.journal import sql as sql_module
from spica_async.journal.sql import SqlJournal
from spica_async.journal.tables import STEPS, metadata, version_table
from spica_async.storage.errors import StorageVersionError
from spica_async.storage.opening import bring_up_to_date, version_of

NEWER = (
    *STEPS,
    ("ALTER TABLE sweeps ADD COLUMN colour TEXT", "UPDATE sweeps SET colour = 'blue'"),
    ("CREATE TABLE pictures (name TEXT NOT NULL PRIMARY KEY)",),
)
"""What a later version might make of today's."""


def use_steps(monkeypatch: pytest.MonkeyPatch, steps: Any) -> None:
    monkeypatch.setattr(sql_module, "STEPS", steps)


async def version_in(journal: SqlJournal) -> int:
    return await journal.database.read(lambda connection: version_of(connection, version_table))


def colours(connection: Connection) -> list[Any]:
    return list(connection.exec_driver_sql("SELECT colour FROM sweeps").all())


async def test_the_steps_lead_to_the_tables_that_the_program_uses(empty_url: str) -> None:
    async with SqlJournal.open(empty_url) as journal:
        assert await journal.database.read(look_at) == {
            name: [(column.name, column.nullable, column.primary_key) for column in table.columns]
            for name, table in metadata.tables.items()
        }


async def test_a_store_of_the_first_version_serves_on(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        use_steps(patch, STEPS[:1])
        async with SqlJournal.open(empty_url) as journal:
            await journal.database.write(
                lambda connection: connection.exec_driver_sql(
                    "INSERT INTO sweeps (sweep_id, folder, config, priority, status, submitted_at,"
                    " last, managed, use_cache, summary, events, published)"
                    " VALUES ('old', '/old', '{}', 3, 'paused', 1.5, 0, 1, 1, '{}', 0, 0)"
                )
            )
    async with SqlJournal.open(empty_url) as journal:
        row = await journal.sweep("old")
        assert (row.folder, row.priority, row.status) == ("/old", 3, "paused")
        assert await journal.begin_publishing("old", LONG)
        assert await journal.submitted_as("token") is None
        for name in ("one", "two"):
            await journal.create(new_sweep(name))


async def test_an_older_store_is_brought_up_to_date_with_nothing_lost(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqlJournal.open(empty_url) as journal:
        await journal.create(new_sweep(priority=3), LONG)
        await journal.append("one", "me", some_facts(0, 50), after=0)
        before = await journal.sweep("one")
    use_steps(monkeypatch, NEWER)
    for _ in range(2):
        async with SqlJournal.open(empty_url) as journal:
            after = await journal.sweep("one")
            assert (after.config, after.priority, after.last) == (before.config, 3, before.last)
            assert (after.owner, after.submitted_at) == ("me", before.submitted_at)
            assert await numbers_that_count(journal) == 50
            assert await journal.database.read(
                lambda found: version_of(found, version_table)
            ) == len(NEWER)
            assert await journal.database.read(colours) == [("blue",)]


async def test_many_bring_it_up_to_date_at_once(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqlJournal.open(empty_url) as journal:
        await journal.create(new_sweep(), LONG)
    use_steps(monkeypatch, NEWER)

    async def use() -> None:
        async with SqlJournal.open(empty_url) as journal:
            assert (await journal.sweep("one")).owner == "me"

    await asyncio.gather(*(use() for _ in range(6)))


async def test_a_step_takes_as_long_as_it_takes(
    postgres: PostgresNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url(postgres.add_database())
    monkeypatch.setattr("spica_async.storage.postgres._CONNECT_SECONDS", 0.5)
    use_steps(monkeypatch, (*STEPS, ("SELECT pg_sleep(1.5)",)))
    async with SqlJournal.open(url, busy_seconds=0.5) as journal:
        assert await version_in(journal) == len(STEPS) + 1


async def test_a_step_that_fails_changes_nothing(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with SqlJournal.open(empty_url) as journal:
        await journal.create(new_sweep(), LONG)
    with monkeypatch.context() as patch:
        use_steps(patch, (*NEWER, ("CREATE TABLE facts (name TEXT)",)))
        with pytest.raises(Exception, match="facts"):
            async with SqlJournal.open(empty_url):
                pass
    async with SqlJournal.open(empty_url) as journal:
        assert await journal.append("one", "me", [fact(1)], after=0) == 1
        assert await version_in(journal) == len(STEPS)
        assert "pictures" not in await journal.database.read(look_at)


async def test_a_newer_one_is_refused(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        use_steps(patch, NEWER)
        async with SqlJournal.open(empty_url) as journal:
            await journal.create(new_sweep())
            name = journal.database.name
    with pytest.raises(StorageVersionError) as refusal:
        async with SqlJournal.open(empty_url):
            pass
    assert str(refusal.value) == (
        f"{name}: it is of version {len(NEWER)}, and this program knows none after "
        f"{len(STEPS)}: open it with the newer spica-async that wrote it"
    )
    # And left as it was.
    use_steps(monkeypatch, NEWER)
    async with SqlJournal.open(empty_url) as journal:
        assert len(await journal.sweeps()) == 1


OPEN = """
import asyncio, sys, time
from spica_async.journal.port import NewSweep
from spica_async.journal.sql import SqlJournal

async def main():
    async with SqlJournal.open(sys.argv[1]) as journal:
        await journal.create(NewSweep(sys.argv[2], "", "{}"))

print("ready", flush=True)
sys.stdin.readline()
asyncio.run(main())
"""


def open_at_once(url: str, names: list[str]) -> None:
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", OPEN, url, name],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                )
            )
            for name in names
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
            process.stdin = None
        for process in processes:
            _, errors = process.communicate(timeout=30)
            assert process.returncode == 0, errors.decode()


async def test_processes_that_open_an_empty_one_at_once_all_succeed(
    empty_url: str,
) -> None:
    names = ["a", "b", "c"]
    await asyncio.to_thread(open_at_once, empty_url, names)
    async with SqlJournal.open(empty_url) as journal:
        assert sorted(row.sweep_id for row in await journal.sweeps()) == names


def test_steps_are_taken_once() -> None:
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        assert version_of(connection, version_table) == 0
        bring_up_to_date(connection, STEPS, version_table)
        bring_up_to_date(connection, STEPS, version_table)
        assert version_of(connection, version_table) == len(STEPS)
        bring_up_to_date(connection, NEWER, version_table)
        bring_up_to_date(connection, STEPS, version_table)
        assert version_of(connection, version_table) == len(NEWER)
    engine.dispose()
