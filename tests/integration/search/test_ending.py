"""How a run ends while its journal is slow, or away."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.jobs import new, resumed, run

from schemas.journal import SWEEP_FACT, Stopped
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import BusUnavailableError, Message
from spica_async.errors import first_cause
from spica_async.journal.opening import JournalOptions, opened
from spica_async.journal.sql import SqlJournal
from spica_async.search.stopping import SweepStop
from spica_async.service.jobs import Job


class Brake:
    """Holds up what is written to the journal, once a number of facts of a kind have been."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, after: int, kind: str = "measured"
    ) -> None:
        self.released = asyncio.Event()
        self.waits = asyncio.Event()
        written = 0
        append = SqlJournal.append

        async def slow(
            journal: SqlJournal, sweep_id: str, owner: str, facts: Any, **rest: Any
        ) -> int:
            nonlocal written
            written += sum(fact.kind == kind for fact in facts)
            if written > after:
                self.waits.set()
                await self.released.wait()
            return await append(journal, sweep_id, owner, facts, **rest)

        monkeypatch.setattr(SqlJournal, "append", slow)


async def test_who_is_told_to_end_while_the_start_is_written_ends_in_good_order(
    tmp_path: Path, options: JournalOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    brake, stop = Brake(monkeypatch, kind="started", after=0), SweepStop()
    job = new(options, tmp_path)
    running = asyncio.ensure_future(run(job, MemoryBus(), stop))
    await brake.waits.wait()
    stop.request()
    running.cancel()
    await asyncio.sleep(0.05)
    brake.released.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    facts = await facts_of(job, options)
    assert (facts["started"], facts["stopped"], facts["requested"]) == (1, 1, 0)


async def facts_of(job: Job, options: JournalOptions) -> Counter[str]:
    async with opened(options) as journal:
        return Counter([one.fact.kind async for one in journal.facts(job.sweep_id)])


def measured_lines(folder: Path) -> int:
    return len((folder / "candidates.jsonl").read_text().splitlines())


async def test_what_is_measured_while_the_journal_is_slow_counts(
    tmp_path: Path, options: JournalOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    brake, stop = Brake(monkeypatch, after=2), SweepStop()
    job = new(options, tmp_path)
    running = asyncio.ensure_future(run(job, MemoryBus(), stop))
    await brake.waits.wait()
    stop.request()
    await asyncio.sleep(0.2)
    assert not running.done()
    brake.released.set()
    result = await running
    facts = await facts_of(job, options)
    assert facts["measured"] > 2
    assert result.tally.feasible + result.tally.failed == facts["measured"]
    assert measured_lines(tmp_path / job.sweep_id) == facts["measured"]


@pytest.mark.parametrize("again", [False, True])
async def test_who_is_told_twice_to_end_writes_down_what_there_is(
    tmp_path: Path, options: JournalOptions, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    """The folder is open for as long as the log has something for it."""
    job: Job = new(options, tmp_path)
    if again:
        await run(job, MemoryBus(), after=1)
        job = resumed(job, options, tmp_path)
    brake, stop = Brake(monkeypatch, after=2), SweepStop()
    running = asyncio.ensure_future(run(job, MemoryBus(), stop))
    await brake.waits.wait()
    stop.request()
    await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.sleep(0.1)
    brake.released.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    facts = await facts_of(job, options)
    assert facts["stopped"] == (2 if again else 1)
    folder = tmp_path / job.sweep_id
    assert measured_lines(folder) == facts["measured"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["status"] == "interrupted"
    async with opened(options) as journal:
        row = await journal.sweep(job.sweep_id)
    assert (row.status, row.owner) == ("interrupted", None)


async def test_a_journal_that_is_away_is_not_waited_for_by_who_is_told_twice(
    tmp_path: Path, options: JournalOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spica_async.search.sweep_run.LAST_SECONDS", 0.3)
    monkeypatch.setattr("spica_async.search.fact_log.LAST_SECONDS", 0.3)
    brake, stop = Brake(monkeypatch, after=2), SweepStop()
    job = new(options, tmp_path)
    running = asyncio.ensure_future(run(job, MemoryBus(), stop))
    await brake.waits.wait()
    stop.request()
    await asyncio.sleep(0.1)
    running.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await running


class LostBus(MemoryBus):
    """Loses its broker after some requests."""

    left = 3

    async def publish(self, queue: str, message: Message) -> None:
        if queue.startswith("spica.requests"):
            self.left -= 1
            if self.left < 0:
                raise BusUnavailableError("no answer for 600 s")
        await super().publish(queue, message)


async def test_what_broke_off_a_search_is_written_down(
    tmp_path: Path, options: JournalOptions
) -> None:
    job, bus = new(options, tmp_path), LostBus()
    with pytest.raises(ExceptionGroup) as caught:
        await run(job, bus)
    cause = first_cause(caught.value)
    assert isinstance(cause, BusUnavailableError)
    assert str(cause).startswith("no answer for 600 s; what was found")
    async with opened(options) as journal:
        recorded = await journal.latest(job.sweep_id, ["stopped"])
        assert (await journal.sweep(job.sweep_id)).status == "failed"
    assert recorded is not None
    stopped = SWEEP_FACT.validate_json(recorded.fact.body)
    assert isinstance(stopped, Stopped)
    assert (stopped.failed, stopped.reason) == (True, "no answer for 600 s")
    # Nobody was told that nobody waits for what is under way.
    assert await bus.queue_status(f"spica.results.{job.sweep_id}")
