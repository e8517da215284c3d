"""Verbs whose caller is cancelled, at many points of their way."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import Iterator

import pytest
from support.journals import LONG, fact, new_sweep, numbers_that_count, some_facts

from spica_async.journal.port import Journal, Lease
from spica_async.journal.sql import SqlJournal


@pytest.fixture(scope="module", autouse=True)
def what_is_left_is_collected() -> Iterator[None]:
    """PostgreSQL's driver leaves a connection whose opening is cancelled late to the collector.

    That finds it once the loop of its test is closed, in whatever test it is at by then.
    """
    gc.disable()
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    gc.enable()


async def cancelled_after(turns: int, journal: Journal, last: int, *, times: int = 1) -> bool:
    """Append, and cancel that after so many turns of the loop; returns whether it had ended."""
    writing = asyncio.ensure_future(journal.append("one", "me", some_facts(last, 2), after=last))
    for _ in range(turns):
        await asyncio.sleep(0)
    ended = writing.done()
    for _ in range(times):
        writing.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([writing])
    return ended


@pytest.mark.parametrize("times", [1, 2, 3], ids=["once", "twice", "thrice"])
async def test_an_append_is_whole_or_not_there(journal: Journal, times: int) -> None:
    await journal.create(new_sweep(), LONG)
    last = 0
    for turns in range(120):
        await cancelled_after(turns, journal, last, times=times)
        if times == 1:
            # It has come to its end: nothing happens behind the caller's back.
            assert (await journal.sweep("one")).last in {last, last + 2}
        # The same again succeeds, whether it was written or not.
        last = await journal.append("one", "me", some_facts(last, 2), after=last)
    assert await numbers_that_count(journal) == last == 240


async def test_one_that_is_cancelled_in_time_leaves_nothing(journal: Journal) -> None:
    await journal.create(new_sweep(), LONG)
    await cancelled_after(0, journal, 0)
    assert await journal.append("one", "me", [fact(1)], after=0) == 1


@pytest.mark.parametrize("seconds", [0.0002, 0.001, 0.003])
async def test_by_the_clock(journal: Journal, seconds: float) -> None:
    await journal.create(new_sweep(), LONG)
    last = 0
    for _ in range(40):
        try:
            async with asyncio.timeout(seconds):
                await journal.append("one", "me", some_facts(last, 3), after=last)
        except TimeoutError:
            pass
        last = await journal.append("one", "me", some_facts(last, 3), after=last)
    assert await numbers_that_count(journal) == 120


async def test_every_other_verb(journal: Journal) -> None:
    await journal.create(new_sweep(), LONG)
    await journal.append("one", "me", some_facts(0, 5), after=0)
    for turns in range(0, 60, 3):
        for verb in (
            journal.create(new_sweep(f"two-{turns}")),
            journal.sweep("one"),
            journal.sweeps(),
            journal.take("one", LONG),
            journal.request("one", "pause"),
            numbers_that_count(journal),
        ):
            doing = asyncio.ensure_future(verb)
            for _ in range(turns):
                await asyncio.sleep(0)
            doing.cancel()
            await asyncio.wait([doing])
            assert doing.cancelled() or doing.exception() is None
    assert await journal.take("one", Lease("me", 30.0)) == 5
    assert await numbers_that_count(journal) == 5


async def test_opening(empty_url: str) -> None:
    async def use() -> None:
        async with SqlJournal.open(empty_url) as opened:
            await opened.sweeps()

    before = threading.active_count()
    for turns in range(0, 200, 4):
        opening = asyncio.ensure_future(use())
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait([opening])
    async with SqlJournal.open(empty_url) as journal:
        await journal.create(new_sweep())
        assert (await journal.sweep("one")).status == "queued"
    # One of SQLite's connections has a thread; those of `to_thread` stay.
    assert threading.active_count() <= before + 8
