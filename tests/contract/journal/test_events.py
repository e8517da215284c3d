"""What others are told of sweeps, and what goes with facts, on every database."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from support.journals import LONG, all_facts, fact, new_sweep, numbers_that_count

from spica_async.journal.port import (
    Journal,
    JournalConflictError,
    Lease,
    LeaseLostError,
    RecordedEvent,
    StatusUpdate,
    SweepExistsError,
    SweepTakenError,
    SweepUnknownError,
)


def told(name: str = "one", *events: str, managed: bool = True) -> StatusUpdate:
    return StatusUpdate(
        events=[f'"{name}-{event}"' for event in events], events_after=1, managed=managed
    )


async def events(journal: Journal, name: str = "one", after: int = 0) -> list[RecordedEvent]:
    return [one async for one in journal.events(name, after)]


async def test_they_come_in_their_order_from_any_number_on(journal: Journal) -> None:
    await journal.create(replace(new_sweep(), events=['"first"']), LONG)
    await journal.append("one", "me", [fact(1)], after=0, changes=told("one", "a", "b"))
    all_of_it = [
        RecordedEvent(1, '"first"'),
        RecordedEvent(2, '"one-a"'),
        RecordedEvent(3, '"one-b"'),
    ]
    assert await events(journal) == all_of_it
    assert await events(journal, after=2) == all_of_it[2:]
    assert await events(journal, "none") == []
    assert (await journal.recent_events()).numbers == {"one": (1, 3)}
    assert (await journal.sweep("one")).events == 3


async def test_what_a_name_that_is_taken_was_to_be_told_with_is_not_kept(journal: Journal) -> None:
    await journal.create(replace(new_sweep(), events=['"first"']))
    with pytest.raises(SweepExistsError):
        await journal.create(replace(new_sweep(), events=['"again"', '"more"']))
    assert await events(journal) == [RecordedEvent(1, '"first"')]


async def test_they_are_written_with_their_facts_or_not_at_all(journal: Journal) -> None:
    await journal.create(replace(new_sweep(), events=['"first"']), LONG)
    with pytest.raises(LeaseLostError):
        await journal.append("one", "you", [fact(1)], after=0, changes=told("one", "a"))
    with pytest.raises(JournalConflictError):
        await journal.append("one", "me", [fact(2)], after=1, changes=told("one", "a"))
    misplaced = replace(told("one", "a"), events_after=2)
    with pytest.raises(JournalConflictError):
        await journal.append("one", "me", [fact(1)], after=0, changes=misplaced)
    assert len(await events(journal)) == 1
    assert await numbers_that_count(journal) == 0


async def test_a_commit_that_is_tried_again_tells_nothing_twice(journal: Journal) -> None:
    await journal.create(replace(new_sweep(), events=['"first"']), LONG)
    for _ in range(2):
        await journal.append("one", "me", [fact(1)], after=0, changes=told("one", "a"))
    assert len(await events(journal)) == 2
    assert await numbers_that_count(journal) == 1


async def test_what_is_untold_is_known_of_managed_sweeps(journal: Journal) -> None:
    for name, managed in (("one", True), ("two", False), ("three", True)):
        await journal.create(replace(new_sweep(name), events=['"first"'], managed=managed))
    assert await journal.unpublished() == ["one", "three"]
    await journal.mark_published("one", 1)
    assert await journal.unpublished() == ["three"]
    # It never goes back.
    await journal.mark_published("one", 0)
    assert (await journal.sweep("one")).published == 1


@pytest.mark.parametrize("published", [0, 1])
async def test_of_a_commands_sweep_a_daemon_tells_what_the_command_could_not(
    journal: Journal, published: int
) -> None:
    await journal.create(replace(new_sweep(), events=['"first"']), LONG)
    changes = replace(told("one", "a", "b"), managed=None)
    await journal.append("one", "me", [fact(1)], after=0, changes=changes)
    await journal.mark_published("one", published)
    await journal.append(
        "one", "me", [], after=1, changes=StatusUpdate(status="queued", managed=True)
    )
    row = await journal.sweep("one")
    assert (row.managed, row.events) == (True, 3)
    # Of one that told nobody, nobody waits for what came before.
    assert row.published == (published or 3)


async def test_status_summary_and_wish_go_with_the_facts(journal: Journal) -> None:
    await journal.create(new_sweep(), LONG)
    await journal.request("one", "pause")
    await journal.append("one", "me", [fact(1)], after=0, changes=StatusUpdate(summary='{"a": 1}'))
    row = await journal.sweep("one")
    assert (row.status, row.summary, row.requested) == ("running", '{"a": 1}', "pause")
    changes = StatusUpdate(status="paused", request_done=True)
    await journal.append("one", "me", [fact(2)], after=1, changes=changes)
    row = await journal.sweep("one")
    assert (row.status, row.summary, row.requested) == ("paused", '{"a": 1}', None)


async def test_one_at_a_time_tells_of_a_sweep(journal: Journal) -> None:
    await journal.create(new_sweep())
    assert await journal.begin_publishing("one", LONG)
    assert await journal.begin_publishing("one", LONG)
    assert not await journal.begin_publishing("one", Lease("you", 0.1))
    # Who tells of it keeps nobody from running it.
    await journal.take("one", Lease("you", 60.0))
    await journal.end_publishing("one", "you")
    assert not await journal.begin_publishing("one", Lease("you", 0.1))
    await journal.end_publishing("one", "me")
    assert await journal.begin_publishing("one", Lease("you", 0.1))
    await asyncio.sleep(0.2)
    assert await journal.begin_publishing("one", LONG)
    assert not await journal.begin_publishing("none", LONG)


async def test_what_is_removed_is_gone_whole(journal: Journal) -> None:
    for name in ("one", "two"):
        await journal.create(replace(new_sweep(name), events=['"first"'], managed=True), LONG)
        await journal.append(name, "me", [fact(1)], after=0, changes=told(name, "a"))
    with pytest.raises(SweepTakenError, match="one is run by me"):
        await journal.remove("one")
    await journal.give_back("one", "me")
    await journal.remove("one")
    for ask in (journal.sweep("one"), journal.remove("one"), journal.take("one", LONG)):
        with pytest.raises(SweepUnknownError):
            await ask
    assert (await events(journal), await all_facts(journal)) == ([], [])
    assert await journal.unpublished() == ["two"]
    assert await numbers_that_count(journal, "two") == 1
    await journal.create(new_sweep("one"))
    assert (await journal.sweep("one")).last == 0
