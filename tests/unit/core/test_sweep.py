"""A whole sweep into a folder, whatever ends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.searching import FakeWorker, Ledger

from schemas.config import SmartSearchConfig
from schemas.results import CandidateRecord
from spica_async.bus.memory import MemoryBus
from spica_async.bus.topology import declare, requests_queue
from spica_async.plan.types import SweepPlan
from spica_async.results import ResultsFolder
from spica_async.sweep import Sweep

SAMPLES = 6


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[ResultsFolder]:
    with ResultsFolder.create(tmp_path / "results", "sweep") as folder:
        yield folder


@pytest.fixture
def make_sweep(
    folder: ResultsFolder,
    make_config: Callable[..., SmartSearchConfig],
    make_sweep_plan: Callable[..., SweepPlan],
) -> Callable[[Ledger], Sweep]:
    """A sweep of six samples that are listed rather than searched, one at a time."""
    config = make_config({"agg_max_num_seqs": [256, 512, 1024]}, sweep={"parallel_evals": 1})
    plan = make_sweep_plan(config)
    assert [branch.distinct_selections for branch in plan.branches] == [SAMPLES]

    def make(display: Ledger) -> Sweep:
        return Sweep(
            sweep_id="sweep",
            plan=plan,
            trace=None,
            folder=folder,
            display=display,
            versions={"engine": "1"},
            fingerprint="engine",
            planning_seconds=0.5,
        )

    return make


@asynccontextmanager
async def worked_bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus()
    await declare(bus, requests_queue("engine"))
    async with FakeWorker(bus).running():
        yield bus


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_kept(folder: ResultsFolder, candidates: int, status: str) -> None:
    """The ranking holds each candidate that was found, best first."""
    records = lines(folder.path / "candidates.jsonl")
    ranking = json.loads((folder.path / "ranking.json").read_text())
    summary = json.loads((folder.path / "summary.json").read_text())
    assert len(records) == candidates
    by_score = sorted(records, key=lambda record: record["score"], reverse=True)
    assert [one["candidate_id"] for one in ranking] == [one["candidate_id"] for one in by_score]
    assert summary["status"] == status
    assert summary["timings"]["planning"] == 0.5


async def test_a_sweep_that_ends_by_itself_is_no_interrupted_one(
    make_sweep: Callable[[Ledger], Sweep], folder: ResultsFolder
) -> None:
    async with worked_bus() as bus:
        result = await make_sweep(Ledger()).run(bus, asyncio.Event())
    assert result.status == "exhausted"
    assert_kept(folder, SAMPLES, "exhausted")


async def test_what_was_found_is_kept_when_the_search_raises(
    make_sweep: Callable[[Ledger], Sweep], folder: ResultsFolder
) -> None:
    ledger = Ledger()

    def fail(_: CandidateRecord) -> None:
        if len(ledger.records) == 3:
            raise LookupError("the screen is gone")

    ledger.on_record = fail
    async with worked_bus() as bus:
        with pytest.raises(ExceptionGroup) as caught:
            await make_sweep(ledger).run(bus, asyncio.Event())
    assert caught.group_contains(LookupError, match="the screen is gone")
    assert_kept(folder, 3, "interrupted")


async def test_what_was_found_is_kept_when_the_task_is_cancelled(
    make_sweep: Callable[[Ledger], Sweep], folder: ResultsFolder
) -> None:
    ledger = Ledger()
    async with worked_bus() as bus:
        running = asyncio.ensure_future(make_sweep(ledger).run(bus, asyncio.Event()))

        def cancel(_: CandidateRecord) -> None:
            if len(ledger.records) == 3:
                running.cancel()

        ledger.on_record = cancel
        with pytest.raises(asyncio.CancelledError):
            await running
    assert running.cancelled()
    assert_kept(folder, 3, "interrupted")


async def test_a_stop_gives_what_was_found(
    make_sweep: Callable[[Ledger], Sweep], folder: ResultsFolder
) -> None:
    stop = asyncio.Event()
    ledger = Ledger()

    def ask_to_stop(_: CandidateRecord) -> None:
        if len(ledger.records) == 3:
            stop.set()

    ledger.on_record = ask_to_stop
    async with worked_bus() as bus:
        result = await make_sweep(ledger).run(bus, stop)
    assert result.status == "interrupted"
    assert_kept(folder, len(result.ranking), "interrupted")
    assert 3 <= len(result.ranking) < SAMPLES
