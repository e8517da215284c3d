"""What an earlier version has kept is opened, shown and gone on with; see README.md beside this."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from support.cached_results import kept
from support.daemons import BUDGET, daemon, make_quick, quick_inputs
from support.jobs import resumed, run

from schemas.journal import SWEEP_FACT, Ended, Measured
from schemas.lifecycle import SweepEvent
from spica_async.bus.memory import MemoryBus
from spica_async.evaluate.cache.sql import SqlResultCache
from spica_async.journal.opening import JournalOptions, config_of, opened
from spica_async.journal.port import SweepRow
from spica_async.service.jobs import NewJob

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


def restored(name: str, folder: Path) -> Path:
    path = folder / f"{name}.sqlite3"
    with sqlite3.connect(path) as connection:
        connection.executescript((HERE / f"{name}.sql").read_text())
    connection.close()
    return path


@pytest.fixture
def options(tmp_path: Path) -> JournalOptions:
    return JournalOptions(restored("journal", tmp_path))


async def row_of(options: JournalOptions, status: str) -> SweepRow:
    async with opened(options) as journal:
        (row,) = await journal.sweeps([status])
        return await journal.sweep(row.sweep_id)


def job_of(row: SweepRow, options: JournalOptions, folder: Path) -> NewJob:
    job = NewJob(quick_inputs(config_of(row), print), root=folder, journal=options, use_cache=False)
    job.sweep_id = row.sweep_id
    return job


async def kept_of(options: JournalOptions, sweep_id: str) -> tuple[list[str], list[str]]:
    """The facts and the events of a sweep, as they are stored."""
    async with opened(options) as journal:
        facts = [one.fact.body async for one in journal.facts(sweep_id)]
        return facts, [one.body async for one in journal.events(sweep_id)]


async def test_an_interrupted_sweep_goes_on_to_exactly_its_budget(
    options: JournalOptions, tmp_path: Path
) -> None:
    row = await row_of(options, "interrupted")
    old_facts, old_events = await kept_of(options, row.sweep_id)

    result = await run(resumed(job_of(row, options, tmp_path), options, tmp_path), MemoryBus())

    assert result.status == "completed"
    assert result.tally.feasible == BUDGET
    facts, events = await kept_of(options, row.sweep_id)
    assert facts[: len(old_facts)] == old_facts
    assert events[: len(old_events)] == old_events
    numbers = [SweepEvent.model_validate_json(body).sequence for body in events]
    assert numbers == list(range(1, len(events) + 1))
    measured = [
        fact.result.evaluation_id
        for fact in map(SWEEP_FACT.validate_json, facts)
        if isinstance(fact, Measured)
    ]
    assert len(measured) == len(set(measured)) == result.tally.attempts - result.tally.cached


async def test_an_ended_sweep_has_the_result_that_it_had(
    options: JournalOptions, tmp_path: Path
) -> None:
    row = await row_of(options, "completed")
    async with opened(options) as journal:
        recorded = await journal.latest(row.sweep_id, ["ended"])
    assert recorded is not None
    ended = SWEEP_FACT.validate_json(recorded.fact.body)
    assert isinstance(ended, Ended)

    result = await run(resumed(job_of(row, options, tmp_path), options, tmp_path), MemoryBus())

    for name in ("status", "reason", "tally", "branches", "timings", "seed"):
        assert getattr(result, name) == getattr(ended.result, name)
    # What is said of noise now was not known then.
    for entry, kept_entry in zip(result.ranking, ended.result.ranking, strict=True):
        old = kept_entry.model_dump(exclude_defaults=True)
        assert entry.model_dump(include=set(old)) == old


async def test_a_daemon_goes_on_with_what_is_queued_and_resumes_what_is_paused(
    options: JournalOptions, tmp_path: Path
) -> None:
    queued, paused = await row_of(options, "queued"), await row_of(options, "paused")
    with sqlite3.connect(options.where) as connection:
        connection.execute(
            "UPDATE sweeps SET folder = replace(folder, '/kept', ?)", [str(tmp_path)]
        )
    connection.close()
    async with daemon(options.where, tmp_path) as run_daemon:
        await run_daemon.manager.resume(paused.sweep_id)
        for sweep_id in (queued.sweep_id, paused.sweep_id):
            detail = await run_daemon.until(sweep_id, "completed")
            assert detail.tally.feasible == BUDGET


async def test_a_cache_answers(tmp_path: Path) -> None:
    async with SqlResultCache.open(restored("results", tmp_path)) as cache:
        assert await kept(cache, "a" * 64) == 1.5
        assert await kept(cache, "b" * 64) == 2.0
        assert (await cache.stats()).measurements == 4
