"""Journals that have been filled for months: what is asked of them reads what is answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from support.journals import LONG, fact, new_sweep
from support.many_sweeps import add_ended, rows_read

from spica_async.journal.port import (
    Journal,
    Lease,
    Place,
    RecordedEvent,
    StatusUpdate,
    SweepTakenError,
)
from spica_async.journal.queries import OVERLAP_SECONDS
from spica_async.journal.retiring import RETIRED, keep_retiring, retire
from spica_async.journal.sql import SqlJournal
from spica_async.storage.errors import StorageBusyError, StorageUnavailableError

MANY = 10_000
DAY = 24 * 3600.0
FEW = 3000
"""Of rows, or of SQLite's steps, which are up to thirty for each row of a list."""


@pytest.fixture
async def full(url: str) -> AsyncIterator[SqlJournal]:
    """Has very many that have ended, one that runs, and one that is to end."""
    async with SqlJournal.open(url) as journal:
        await add_ended(journal, MANY, first=time.time() - 300 * DAY)
        await journal.create(replace(new_sweep("running"), managed=True, events=['"a"']), LONG)
        await journal.create(new_sweep("wished"))
        await journal.request("wished", "cancel")
        yield journal


async def listed(journal: Journal, **page: Any) -> list[str]:
    return [row.sweep_id for row in await journal.sweeps(**page)]


async def test_each_answer_reads_few_rows(full: SqlJournal, url: str) -> None:
    oldest = (await full.sweeps(limit=1, offset=MANY + 1))[0]
    deep = Place(oldest.submitted_at + 100, oldest.sweep_id)
    since = (await full.recent_events()).at
    asked: dict[str, Callable[[], Awaitable[Any]]] = {
        "first page": lambda: full.sweeps(limit=50),
        "deep page": lambda: full.sweeps(after=deep, limit=50),
        "page of a state": lambda: full.sweeps(["completed"], after=deep, limit=50),
        "page of a rare state": lambda: full.sweeps(["running"], limit=50),
        "wanted": lambda: full.wanted(["queued", "running"]),
        "unpublished": full.unpublished,
        "recent events": full.recent_events,
        "later events": lambda: full.recent_events(since),
        "one": lambda: full.sweep("sweep-1"),
        "long ended": lambda: full.long_ended(RETIRED, for_seconds=400 * DAY, limit=500),
    }
    read = {name: await rows_read(full, url, ask) for name, ask in asked.items()}
    assert {name: rows for name, rows in read.items() if rows > FEW} == {}
    # That this tells them apart.
    assert await rows_read(full, url, full.sweeps) > MANY


async def test_counts_look_at_an_index_alone(full: SqlJournal) -> None:
    assert await full.counts() == {"completed": MANY, "running": 1, "queued": 1}
    if full.database.engine.dialect.name != "sqlite":
        return  # PostgreSQL takes the table where its rows are as short as these.

    def explain(connection: Any) -> str:
        asked = "EXPLAIN QUERY PLAN SELECT status, count(*) FROM sweeps GROUP BY status"
        return str(connection.exec_driver_sql(asked).all())

    assert "USING COVERING INDEX" in await full.database.read(explain)


class TestPages:
    async def test_they_are_of_all_and_in_order(self, journal: SqlJournal) -> None:
        await add_ended(journal, 10, first=1000.0)
        await journal.create(new_sweep("queued"))
        whole = await listed(journal)
        assert whole == ["queued", *(f"sweep-{number}" for number in range(10, 0, -1))]
        assert await listed(journal, offset=2, limit=3) == whole[2:5]
        assert await listed(journal, offset=20, limit=3) == []
        assert await listed(journal, statuses=["completed"], limit=2) == whole[1:3]
        assert await listed(journal, statuses=["completed"], offset=1, limit=2) == whole[2:4]

    async def test_they_go_on_behind_a_place(self, journal: SqlJournal) -> None:
        await add_ended(journal, 10, first=1000.0)
        whole = await journal.sweeps()
        found: list[str] = []
        while page := await journal.sweeps(limit=3, after=_place(found, whole)):
            found += [row.sweep_id for row in page]
        assert found == [row.sweep_id for row in whole]

    async def test_the_place_of_one_that_was_removed_is_there(self, journal: SqlJournal) -> None:
        await add_ended(journal, 5, first=1000.0)
        place = Place(1003.0, "sweep-3")
        await journal.remove("sweep-3")
        assert await listed(journal, after=place) == ["sweep-2", "sweep-1"]

    async def test_those_of_the_same_time_are_told_apart(
        self, journal: SqlJournal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("a", "b", "c"):
            await journal.create(new_sweep(name))
        await journal.database.write(
            lambda connection: connection.exec_driver_sql("UPDATE sweeps SET submitted_at = 7.25")
        )
        assert await listed(journal) == ["a", "b", "c"]
        assert await listed(journal, after=Place(7.25, "a"), limit=1) == ["b"]
        assert await listed(journal, after=Place(7.25, "c")) == []


class TestRecentEvents:
    async def test_what_is_new_is_told_by_its_numbers(self, journal: SqlJournal) -> None:
        await add_ended(journal, 5, first=1000.0)
        await journal.create(replace(new_sweep(), events=['"a"']), LONG)
        first = await journal.recent_events()
        assert first.numbers == {"one": (1, 1)}
        changes = StatusUpdate(events=['"b"', '"c"'], events_after=1)
        await journal.append("one", "me", [fact(1)], after=0, changes=changes)
        later = await journal.recent_events(first.at)
        assert later.numbers == {"one": (1, 3)}
        assert later.at >= first.at

    async def test_none_is_left_out_however_long_nobody_asked(self, journal: SqlJournal) -> None:
        await add_ended(journal, 100, first=1000.0)
        # What is from half a minute before that time may have come late.
        reached = int(OVERLAP_SECONDS)
        numbers = (await journal.recent_events(1050.0)).numbers
        assert set(numbers) == {f"sweep-{n}" for n in range(51 - reached, 101)}

    async def test_events_from_before_they_had_a_time_are_kept(self, journal: SqlJournal) -> None:
        await journal.create(replace(new_sweep(), events=['"a"']), LONG)
        await journal.database.write(
            lambda connection: connection.exec_driver_sql("UPDATE events SET recorded_at = NULL")
        )
        assert (await journal.recent_events()).numbers == {}
        assert [one async for one in journal.events("one")] == [RecordedEvent(1, '"a"')]


class TestRetiring:
    async def test_what_ended_long_ago_is_removed(self, journal: SqlJournal) -> None:
        now = time.time()
        await add_ended(journal, 4, first=now - 10 * DAY)
        await journal.create(replace(new_sweep("new"), events=['"a"']), LONG)
        assert await retire(journal, keep_days=20) == 0
        assert await retire(journal, keep_days=5) == 4
        assert await listed(journal) == ["new"]
        for table in ("facts", "events"):
            assert await _count(journal, table) == (1 if table == "events" else 0)

    async def test_it_counts_from_when_it_ended(self, journal: SqlJournal) -> None:
        await add_ended(journal, 2, first=time.time() - 10 * DAY)
        await journal.take("sweep-1", LONG)
        await journal.append(
            "sweep-1", "me", [fact(2)], after=1, changes=StatusUpdate(status="completed")
        )
        await journal.give_back("sweep-1", "me")
        assert await retire(journal, keep_days=5) == 1
        assert await listed(journal) == ["sweep-1"]

    async def test_what_may_yet_be_gone_on_with_is_kept(self, journal: SqlJournal) -> None:
        go = ["completed", "time_limit", "nothing_feasible", "cancelled", "failed"]
        stay = ["queued", "running", "paused", "interrupted", "of-a-newer-version"]
        for status in (*go, *stay):
            await journal.create(new_sweep(status))
        await journal.database.write(
            lambda connection: connection.exec_driver_sql(
                "UPDATE sweeps SET status = sweep_id, submitted_at = 1000"
            )
        )
        assert await retire(journal, keep_days=1) == len(go)
        assert sorted(await listed(journal)) == sorted(stay)

    async def test_what_somebody_has_is_kept(self, journal: SqlJournal) -> None:
        await add_ended(journal, 1, first=1000.0)
        await journal.take("sweep-1", Lease("you", 60.0))
        assert await retire(journal, keep_days=1) == 0
        with pytest.raises(SweepTakenError):
            await journal.remove("sweep-1", only_from=RETIRED)

    async def test_what_is_resumed_meanwhile_is_kept(self, journal: SqlJournal) -> None:
        await add_ended(journal, 1, first=1000.0)
        await journal.take("sweep-1", LONG)
        await journal.append("sweep-1", "me", [], after=1, changes=StatusUpdate(status="queued"))
        await journal.give_back("sweep-1", "me")
        assert not await journal.remove("sweep-1", only_from=RETIRED)
        assert await listed(journal) == ["sweep-1"]

    async def test_more_than_are_looked_for_at_once(self, journal: SqlJournal) -> None:
        await add_ended(journal, 11, first=1000.0)
        await journal.take("sweep-1", LONG)
        assert await retire(journal, keep_days=1, at_once=4) == 10

    async def test_it_goes_on_when_the_journal_is_back(
        self, journal: SqlJournal, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await add_ended(journal, 3, first=1000.0)
        look = journal.long_ended
        failures = [StorageUnavailableError("it is away"), StorageBusyError("it is busy")]

        async def flaky(*args: Any, **kwargs: Any) -> list[str]:
            if failures:
                raise failures.pop()
            return await look(*args, **kwargs)

        monkeypatch.setattr(journal, "long_ended", flaky)
        retiring = asyncio.ensure_future(keep_retiring(journal, keep_days=1, every_seconds=0))
        async with asyncio.timeout(30):
            while await listed(journal):  # noqa: ASYNC110  # it sets no event
                await asyncio.sleep(0.01)
        retiring.cancel()
        assert failures == []


async def _count(journal: SqlJournal, table: str) -> int:
    def ask(connection: Any) -> int:
        return int(connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one())

    return await journal.database.read(ask)


def _place(found: list[str], whole: list[Any]) -> Place | None:
    if not found:
        return None
    row = whole[len(found) - 1]
    return Place(row.submitted_at, row.sweep_id)
