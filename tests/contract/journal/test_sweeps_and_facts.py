"""Sweeps, leases, wishes and facts, on every database."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from support.journals import LONG, all_facts, fact, new_sweep, numbers_that_count, some_facts

from spica_async.journal.port import (
    Fact,
    Journal,
    JournalConflictError,
    Lease,
    LeaseLostError,
    StatusUpdate,
    SweepExistsError,
    SweepTakenError,
    SweepUnknownError,
)

from .conftest import OpenJournal

YOURS = Lease("you", 60.0)
SHORT = Lease("me", 0.3)


class TestSweeps:
    async def test_a_new_sweep_is_queued_and_nobodys(self, journal: Journal) -> None:
        before = time.time()
        await journal.create(new_sweep(priority=7))
        row = await journal.sweep("one")
        assert (row.sweep_id, row.folder, row.priority) == ("one", "/results/one", 7)
        assert row.config == new_sweep().config
        assert (row.status, row.owner, row.last, row.requested) == ("queued", None, 0, None)
        assert row.lease_seconds <= 0
        assert before - 1 <= row.submitted_at <= time.time() + 1

    async def test_with_a_lease_it_is_running_and_held_at_once(self, journal: Journal) -> None:
        await journal.create(new_sweep(), LONG)
        row = await journal.sweep("one")
        assert (row.status, row.owner) == ("running", "me")
        assert LONG.seconds - 10 < row.lease_seconds <= LONG.seconds
        assert await journal.append("one", "me", [fact(1)], after=0) == 1

    async def test_a_name_is_taken_once(self, journal: Journal) -> None:
        await journal.create(new_sweep(priority=1))
        with pytest.raises(SweepExistsError, match="one"):
            await journal.create(new_sweep(priority=2), LONG)
        row = await journal.sweep("one")
        assert (row.priority, row.status, row.owner) == (1, "queued", None)

    async def test_the_latest_comes_first(self, journal: Journal) -> None:
        assert await journal.sweeps() == []
        for name in ("b", "c", "a"):
            await journal.create(new_sweep(name))
            await asyncio.sleep(0.01)
        assert [row.sweep_id for row in await journal.sweeps()] == ["a", "c", "b"]

    async def test_what_is_unknown_is_said_to_be(self, journal: Journal) -> None:
        with pytest.raises(SweepUnknownError, match="none"):
            await journal.sweep("none")
        with pytest.raises(SweepUnknownError, match="none"):
            await journal.take("none", LONG)
        with pytest.raises(SweepUnknownError, match="none"):
            await journal.request("none", "pause")
        with pytest.raises(LeaseLostError, match="none"):
            await journal.append("none", "me", [fact(1)], after=0)
        await journal.give_back("none", "me")
        assert await all_facts(journal, "none") == []


class TestWishes:
    async def test_a_wish_is_there_for_whoever_runs_the_sweep(
        self, journal: Journal, open_journal: OpenJournal
    ) -> None:
        await journal.create(new_sweep(), LONG)
        async with open_journal() as other:
            assert await other.request("one", "pause")
        assert (await journal.sweep("one")).requested == "pause"
        await journal.append("one", "me", [fact(1)], after=0, changes=StatusUpdate(status="paused"))
        assert (await journal.sweep("one")).requested is None

    async def test_of_a_sweep_at_rest_nothing_is_asked(self, journal: Journal) -> None:
        await journal.create(new_sweep(), LONG)
        for number, status in enumerate(("paused", "cancelled", "completed", "failed")):
            await journal.append(
                "one", "me", [fact(1)], after=number, changes=StatusUpdate(status=status)
            )
            assert not await journal.request("one", "cancel")
            assert (await journal.sweep("one")).requested is None
        await journal.append("one", "me", [], after=4, changes=StatusUpdate(status="queued"))
        assert await journal.request("one", "cancel")

    async def test_who_wants_it_cancelled_is_not_asked_to_pause_it(self, journal: Journal) -> None:
        await journal.create(new_sweep(), LONG)
        await journal.request("one", "pause")
        for wish in ("cancel", "pause"):
            assert await journal.request("one", wish)
            assert (await journal.sweep("one")).requested == "cancel"

    @pytest.mark.parametrize(
        ("status", "left"),
        [
            ("queued", ["pause", "cancel"]),
            ("running", ["pause", "cancel"]),
            ("paused", ["cancel"]),
            ("failed", ["cancel"]),
            ("interrupted", ["cancel"]),
            ("cancelled", []),
            ("completed", []),
        ],
    )
    async def test_a_status_grants_what_it_is_an_answer_to(
        self, journal: Journal, status: str, left: list[str]
    ) -> None:
        for wish in ("pause", "cancel"):
            await journal.create(new_sweep(wish), LONG)
            await journal.request(wish, wish)
            await journal.append(
                wish, "me", [fact(1)], after=0, changes=StatusUpdate(status=status)
            )
        rows = await journal.wanted([])
        assert sorted(row.requested or "" for row in rows) == sorted(left)
        for wish in left:
            await journal.append(wish, "me", [], after=1, changes=StatusUpdate(request_done=True))
        assert await journal.wanted([]) == []


class TestLeases:
    async def test_one_runs_it_and_the_other_is_told_so(
        self, journal: Journal, open_journal: OpenJournal
    ) -> None:
        await journal.create(new_sweep())
        await journal.take("one", LONG)
        async with open_journal() as other:
            with pytest.raises(SweepTakenError, match="one is run by me") as refusal:
                await other.take("one", YOURS)
            assert refusal.value.owner == "me"
            assert LONG.seconds - 10 < refusal.value.seconds <= LONG.seconds
            with pytest.raises(LeaseLostError):
                await other.append("one", "you", [fact(1)], after=0)
            await other.give_back("one", "you")
        row = await journal.sweep("one")
        assert row.owner == "me"
        assert row.last == 0

    async def test_what_is_given_back_is_free(self, journal: Journal) -> None:
        await journal.create(new_sweep(), LONG)
        await journal.append("one", "me", [fact(1)], after=0)
        await journal.give_back("one", "me")
        assert (await journal.sweep("one")).owner is None
        with pytest.raises(LeaseLostError):
            await journal.append("one", "me", [fact(2)], after=1)
        assert await journal.take("one", YOURS) == 1

    async def test_a_lease_that_has_run_out_is_lost_to_its_owner(self, journal: Journal) -> None:
        await journal.create(new_sweep(), SHORT)
        await journal.append("one", "me", [fact(1)], after=0)
        await asyncio.sleep(SHORT.seconds + 0.1)
        with pytest.raises(LeaseLostError):
            await journal.append("one", "me", [fact(2)], after=1)
        assert await journal.take("one", YOURS) == 1
        with pytest.raises(SweepTakenError):
            await journal.take("one", LONG)

    async def test_a_lease_is_renewed_by_its_owner(self, journal: Journal) -> None:
        await journal.create(new_sweep(), SHORT)
        await journal.take("one", LONG)
        await asyncio.sleep(SHORT.seconds + 0.1)
        await journal.append("one", "me", [fact(1)], after=0)

    async def test_a_dead_owners_lease_need_not_run_out(self, journal: Journal) -> None:
        await journal.create(new_sweep(), LONG)
        with pytest.raises(SweepTakenError):
            await journal.take("one", YOURS, instead_of="somebody else")
        assert await journal.take("one", YOURS, instead_of="me") == 0
        with pytest.raises(LeaseLostError):
            await journal.append("one", "me", [fact(1)], after=0)
        # Of two that know it to be dead, one is the first.
        with pytest.raises(SweepTakenError, match="run by you"):
            await journal.take("one", Lease("they", 60.0), instead_of="me")

    async def test_of_many_at_once_one_gets_it(
        self, journal: Journal, open_journal: OpenJournal
    ) -> None:
        await journal.create(new_sweep(), Lease("dead", 60.0))

        async def try_it(owner: str) -> bool:
            async with open_journal() as mine:
                try:
                    await mine.take("one", Lease(owner, 60.0), instead_of="dead")
                except SweepTakenError:
                    return False
                return True

        got = await asyncio.gather(*(try_it(f"c{number}") for number in range(8)))
        assert sum(got) == 1
        assert (await journal.sweep("one")).owner == f"c{got.index(True)}"


class TestFacts:
    async def test_they_are_numbered_without_gaps_and_read_in_order(
        self, journal: Journal, open_journal: OpenJournal
    ) -> None:
        await journal.create(new_sweep(), LONG)
        before = time.time()
        assert await journal.append("one", "me", [fact(1), fact(2)], after=0) == 2
        assert (
            await journal.append("one", "me", [], after=2, changes=StatusUpdate(status="paused"))
            == 2
        )
        assert (
            await journal.append(
                "one", "me", [fact(3)], after=2, changes=StatusUpdate(status="completed")
            )
            == 3
        )
        async with open_journal() as other:
            found = await all_facts(other)
            assert [one.number for one in found] == [1, 2, 3]
            assert [one.fact for one in found] == [fact(1), fact(2), fact(3)]
            assert all(before - 1 < one.recorded_at < time.time() + 1 for one in found)
            assert [one.number for one in await all_facts(other, after=2)] == [3]
            assert await all_facts(other, after=3) == []
            row = await other.sweep("one")
        assert (row.status, row.last) == ("completed", 3)

    async def test_each_has_the_time_at_which_it_was_recorded(self, journal: Journal) -> None:
        await journal.create(new_sweep(), LONG)
        for after in range(3):
            await journal.append("one", "me", [fact(after)], after=after)
            await asyncio.sleep(0.05)
        first, second, third = [one.recorded_at for one in await all_facts(journal)]
        assert second - first > 0.04
        assert third - second > 0.04

    async def test_ten_thousand_are_read_in_well_below_a_second(self, journal: Journal) -> None:
        await journal.create(new_sweep(), LONG)
        await journal.append("one", "me", some_facts(0, 10_000), after=0)
        seconds = []
        for _ in range(3):
            before = time.perf_counter()
            assert len(await all_facts(journal)) == 10_000
            seconds.append(time.perf_counter() - before)
        assert min(seconds) < 0.5
        assert await numbers_that_count(journal) == 10_000

    @pytest.mark.parametrize("count", [999, 1000, 1001, 2000])
    async def test_whole_pages_and_parts_of_one(self, journal: Journal, count: int) -> None:
        await journal.create(new_sweep(), LONG)
        await journal.append("one", "me", some_facts(0, count), after=0)
        assert await numbers_that_count(journal) == count

    async def test_sweeps_do_not_share_them(self, journal: Journal) -> None:
        for name in ("one", "two"):
            await journal.create(new_sweep(name), LONG)
            await journal.append(name, "me", [Fact("named", f'"{name}"')], after=0)
        assert [one.fact.body for one in await all_facts(journal, "two")] == ['"two"']

    async def test_facts_are_read_as_they_were_written(self, journal: Journal) -> None:
        bodies = ['"☃ \\u0000 \\ud800 \'%?:x"', "1e400", '  {"b":1, "a":2} ', f'"{"x" * 10**6}"']
        await journal.create(new_sweep(), LONG)
        await journal.append("one", "me", [Fact("k", body) for body in bodies], after=0)
        assert [one.fact.body for one in await all_facts(journal)] == bodies

    async def test_reading_takes_in_what_is_written_meanwhile(self, journal: Journal) -> None:
        await journal.create(new_sweep(), LONG)
        last = await journal.append("one", "me", some_facts(0, 1000), after=0)
        seen = 0
        async for one in journal.facts("one"):
            if one.number == 1:
                last = await journal.append("one", "me", some_facts(last, 5), after=last)
            seen += 1
        assert seen == last


class TestTwice:
    async def test_what_stands_already_is_not_written_again(self, journal: Journal) -> None:
        await journal.create(new_sweep(), LONG)
        for _ in range(3):
            assert await journal.append("one", "me", some_facts(0, 3), after=0) == 3
        for _ in range(2):
            assert (
                await journal.append(
                    "one", "me", [fact(4)], after=3, changes=StatusUpdate(status="completed")
                )
                == 4
            )
        assert await numbers_that_count(journal) == 4
        assert (await journal.sweep("one")).status == "completed"

    @pytest.mark.parametrize(
        ("after", "count"), [(0, 1), (0, 2), (0, 4), (1, 1), (2, 2), (3, 1), (4, 0), (0, 0)]
    )
    async def test_anything_else_is_a_conflict(
        self, journal: Journal, after: int, count: int
    ) -> None:
        await journal.create(new_sweep(), LONG)
        await journal.append("one", "me", [fact(1), fact(2)], after=0)
        other = [Fact("other", "0")] * count
        if after == 2 and count:
            assert await journal.append("one", "me", other, after=after) == after + count
            return
        with pytest.raises(JournalConflictError, match="its latest fact is 2"):
            await journal.append(
                "one", "me", other, after=after, changes=StatusUpdate(status="completed")
            )
        assert await numbers_that_count(journal) == 2
        assert (await journal.sweep("one")).status == "running"

    async def test_the_same_facts_with_another_status_are_a_conflict(
        self, journal: Journal
    ) -> None:
        await journal.create(new_sweep(), LONG)
        await journal.append("one", "me", [fact(1)], after=0)
        with pytest.raises(JournalConflictError):
            await journal.append(
                "one", "me", [fact(1)], after=0, changes=StatusUpdate(status="completed")
            )
        assert (await journal.sweep("one")).status == "running"

    async def test_a_lost_lease_is_told_first(self, journal: Journal) -> None:
        await journal.create(new_sweep(), LONG)
        await journal.append("one", "me", [fact(1)], after=0)
        await journal.take("one", YOURS, instead_of="me")
        with pytest.raises(LeaseLostError):
            await journal.append("one", "me", [fact(1)], after=0)

    async def test_two_writers_of_one_owner_never_mix(
        self, journal: Journal, open_journal: OpenJournal
    ) -> None:
        await journal.create(new_sweep(), LONG)

        async def write(mine: Journal, label: str) -> int:
            last = conflicts = 0
            while last < 40:
                try:
                    last = await mine.append("one", "me", [Fact(label, "0")], after=last)
                except JournalConflictError:
                    conflicts += 1
                    last = (await mine.sweep("one")).last
            return conflicts

        async with open_journal() as other:
            await asyncio.gather(write(journal, "a"), write(other, "b"))
        found = await all_facts(journal)
        assert [one.number for one in found] == list(range(1, len(found) + 1))
        assert len(found) >= 40


class TestAfterAnError:
    async def test_the_journal_goes_on(self, journal: Journal) -> None:
        await journal.create(new_sweep(), LONG)
        for number in range(1, 30):
            with pytest.raises(LeaseLostError):
                await journal.append("one", "you", [fact(1)], after=number - 1)
            with pytest.raises(JournalConflictError):
                await journal.append("one", "me", [fact(1)], after=number)
            with pytest.raises(SweepExistsError):
                await journal.create(new_sweep())
            assert await journal.append("one", "me", [fact(number)], after=number - 1) == number
        assert await numbers_that_count(journal) == 29

    async def test_what_no_database_takes_is_refused_whole(self, journal: Journal) -> None:
        await journal.create(new_sweep(), LONG)
        lone_surrogate = Fact("k", "\ud800")
        # A bug of the caller's: each driver has an error of its own for it.
        with pytest.raises(Exception, match=r"surrogate|codec"):
            await journal.append("one", "me", [fact(1), lone_surrogate], after=0)
        assert (await journal.sweep("one")).last == 0
        assert await journal.append("one", "me", [fact(1)], after=0) == 1
        assert await numbers_that_count(journal) == 1


def test_the_port_does_without_a_database_library() -> None:
    code = (
        "import sys; import spica_async.journal.opening, spica_async.journal.port;"
        "print({'sqlalchemy', 'asyncpg', 'sqlite3'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


async def test_a_token_names_one_submission(journal: Journal) -> None:
    await journal.create(replace(new_sweep(), token="key"))
    assert await journal.submitted_as("key") == "one"
    assert await journal.submitted_as("another") is None
    with pytest.raises(SweepExistsError):
        await journal.create(replace(new_sweep("two"), token="key"))
    assert [row.sweep_id for row in await journal.sweeps()] == ["one"]


async def test_a_look_whether_it_can_be_written_changes_nothing(journal: Journal) -> None:
    await journal.create(new_sweep(), LONG)
    before = await journal.sweep("one")
    await journal.check_writable()
    after = await journal.sweep("one")
    assert replace(after, lease_seconds=0) == replace(before, lease_seconds=0)
