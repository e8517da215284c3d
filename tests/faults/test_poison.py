"""Candidates that kill who evaluates them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support.broker import VirtualHost
from support.faults.check import check_exact, check_nothing_is_left
from support.faults.fates import Fate, Fates
from support.faults.sweeps import RunningSweep, sweeping
from support.faults.workers import WorkerProcess, Workers

from schemas.results import SweepResult
from spica_async.bus import topology
from workers.port import MAX_CHILD_DEATHS


async def test_only_those_that_kill_their_child_fail(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.KILL_CHILD, 2)
    workers.start()
    workers.start()
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        result = await sweep.result()
    poisonous = fates.taken(Fate.KILL_CHILD)
    await check_exact(sweep, result, failed=dict.fromkeys(poisonous, "child_died"))
    tried = Counter(start.evaluation_id for start in fates.starts)
    assert {identity: tried[identity] for identity in poisonous} == dict.fromkeys(
        poisonous, MAX_CHILD_DEATHS
    )
    # No request came back, neither theirs nor a neighbour's.
    assert len(fates.starts) == sweep.budget + 2 * (MAX_CHILD_DEATHS - 1)
    for record in sweep.records:
        if record.candidate_id in poisonous:
            assert "SIGKILL" in (record.detail or "")
    await check_nothing_is_left(workers, broker_vhost, "sweep")


async def test_one_that_kills_its_worker_fails_at_the_delivery_limit(
    *,
    broker_vhost: VirtualHost,
    workers: Workers,
    fates: Fates,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = 2
    monkeypatch.setattr(topology, "DELIVERY_LIMIT", limit)
    fates.lay_out(Fate.KILL_WORKER)

    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        result = await ended(
            sweep, workers, lambda: workers.start(slots=1, delivery_limit=limit), hosts=2
        )
    await check_killer(sweep, result, fates, limit)
    assert len(workers.all) - len(workers.running) == limit + 1
    await check_nothing_is_left(workers, broker_vhost, "sweep")


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 2])
async def test_one_that_kills_its_worker_again_and_again(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path, slots: int
) -> None:
    fates.lay_out(Fate.KILL_WORKER)
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        result = await ended(sweep, workers, lambda: workers.start(slots=slots), hosts=2)
    # With two slots it takes a neighbour down with it now and then, which must not fail for that.
    await check_killer(sweep, result, fates, topology.DELIVERY_LIMIT, alone=slots == 1)
    await check_nothing_is_left(workers, broker_vhost, "sweep")


async def ended(
    sweep: RunningSweep, workers: Workers, start: Callable[[], WorkerProcess], *, hosts: int
) -> SweepResult:
    """The sweep's result, with a new worker for each that has died."""
    async with asyncio.TaskGroup() as group:
        result = group.create_task(sweep.result())
        while not result.done():
            for _ in range(hosts - len(workers.running)):
                start()
            await asyncio.wait({result}, timeout=0.05)
    return result.result()


async def check_killer(
    sweep: RunningSweep, result: SweepResult, fates: Fates, limit: int, *, alone: bool = True
) -> None:
    [killer] = fates.taken(Fate.KILL_WORKER)
    await check_exact(sweep, result, failed={killer: "delivery_limit"})
    tried = Counter(start.evaluation_id for start in fates.starts)
    if alone:
        assert tried[killer] == limit + 1
        assert tried.total() == sweep.budget + limit
