"""What another version has stored is shown as far as it can be read, and stops nobody."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from support.daemons import RunningDaemon, daemon, make_quick

from schemas.lifecycle import SweepEvent
from spica_async.journal.port import NewSweep
from spica_async.journal.sql import SqlJournal
from spica_async.service.port import UnreadableEvent


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


async def two_ended(run: RunningDaemon) -> list[str]:
    ids = [await run.submit() for _ in range(2)]
    for sweep_id in ids:
        await run.until(sweep_id, "completed")
    async with asyncio.timeout(30):
        while run.manager.runner.running:  # noqa: ASYNC110  # they are let go of a little later
            await asyncio.sleep(0.01)
    return ids


def change(where: Path, statement: str, *values: str) -> None:
    with sqlite3.connect(where) as journal:
        assert journal.execute(statement, values).rowcount > 0


async def test_an_event_is_left_out_of_every_stream(where: Path, tmp_path: Path) -> None:
    odd = NewSweep("odd", str(tmp_path / "odd"), "{}", events=['{"data": 1}', "no JSON"])
    unread = [UnreadableEvent("odd", number) for number in (1, 2)]
    heard: list[SweepEvent | UnreadableEvent] = []
    listening = asyncio.Event()

    async def listen(run: RunningDaemon) -> None:
        async for event in run.manager.events(None):
            heard.append(event)
            listening.set()
            # Within a moment sweeps are told of in no order.
            if sum(map(is_the_end, heard)) == 2 and sum(map(is_unread, heard)) == 2:
                return

    async with daemon(where, tmp_path) as run, asyncio.timeout(30):
        hearing = asyncio.ensure_future(listen(run))
        await run.submit()
        await listening.wait()
        async with SqlJournal.open(where) as journal:
            await journal.create(odd)
        await run.submit()
        await hearing
        own = run.manager.events("odd")
        assert [await anext(own) for _ in unread] == unread
    assert list(filter(is_unread, heard)) == unread
    assert str(unread[0]) == "event 1 of sweep odd cannot be read by this version"


def is_the_end(event: SweepEvent | UnreadableEvent) -> bool:
    return isinstance(event, SweepEvent) and event.data.kind == "sweep.finished"


def is_unread(event: SweepEvent | UnreadableEvent) -> bool:
    return isinstance(event, UnreadableEvent)


async def test_a_state_is_listed_as_unreadable(where: Path, tmp_path: Path) -> None:
    async with daemon(where, tmp_path) as run:
        first, second = await two_ended(run)
        change(where, "UPDATE sweeps SET status = 'ascended' WHERE sweep_id = ?", first)
        listed = {sweep.sweep_id: sweep for sweep in await run.listed()}
        shown = await run.manager.sweep(first)
        counts = await run.manager.counts()
    assert (listed[first].state, listed[second].state) == ("unreadable", "completed")
    assert shown.state == "unreadable"
    assert listed[first].reason == "its state 'ascended' cannot be read by this version"
    assert counts == {"unreadable": 1, "completed": 1}


async def test_a_summary_leaves_what_else_there_is(where: Path, tmp_path: Path) -> None:
    async with daemon(where, tmp_path) as run:
        first, second = await two_ended(run)
        change(where, "UPDATE sweeps SET summary = '{\"model\": 5}' WHERE sweep_id = ?", first)
        listed = {sweep.sweep_id: sweep for sweep in await run.listed()}
        shown = await run.manager.sweep(first)
    assert listed[second].model != ""
    assert (listed[first].state, listed[first].model) == ("completed", "")
    assert listed[first].reason == "its summary cannot be read by this version"
    assert shown.best != []


async def test_a_summary_is_kept_by_who_cannot_read_it(where: Path, tmp_path: Path) -> None:
    async with daemon(where, tmp_path, parallel_sweeps=1, max_queued=10) as run:
        run.manager.runner.is_ending = True  # So that none is begun.
        sweep_id = await run.submit()
        change(where, "UPDATE sweeps SET summary = '{\"model\": 5}' WHERE sweep_id = ?", sweep_id)
        assert (await run.manager.cancel(sweep_id)).state == "cancelled"
        with sqlite3.connect(where) as journal:
            (kept,) = journal.execute("SELECT summary FROM sweeps").fetchone()
    assert kept == '{"model": 5}'


@pytest.mark.parametrize("body", ["not JSON", '{"kind": "transcended"}', '{"kind": "ended"}'])
async def test_a_last_fact_leaves_the_sweep_to_be_shown(
    where: Path, tmp_path: Path, body: str
) -> None:
    async with daemon(where, tmp_path) as run:
        first, _ = await two_ended(run)
        change(
            where,
            "UPDATE facts SET body = ? WHERE kind = 'ended' AND sweep_id = ?",
            body,
            first,
        )
        shown = await run.manager.sweep(first)
    assert shown.state == "completed"
    assert shown.reason is not None
    assert shown.reason.endswith("cannot be read by this version")
    assert shown.config != {}


async def test_a_configuration_leaves_the_rest_to_be_shown(where: Path, tmp_path: Path) -> None:
    async with daemon(where, tmp_path) as run:
        first, _ = await two_ended(run)
        change(where, "UPDATE sweeps SET config = '[' WHERE sweep_id = ?", first)
        shown = await run.manager.sweep(first)
    assert (shown.state, shown.config) == ("completed", {})
    assert shown.reason == "its configuration cannot be read by this version"


async def test_what_is_asked_in_new_words_waits_for_who_knows_them(
    where: Path, tmp_path: Path
) -> None:
    async with daemon(where, tmp_path) as run:
        first, _ = await two_ended(run)
        change(where, "UPDATE sweeps SET wish = 'rejoice' WHERE sweep_id = ?", first)
        # It goes on with others all the same.
        await run.until(await run.submit(), "completed")
        assert list(await run.manager.troubles()) == []
