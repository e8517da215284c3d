"""A coordinator that is stopped: what waits is cancelled, what runs has its grace."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.broker import VirtualHost
from support.faults.check import check_nothing_is_left
from support.faults.fates import Fate, Fates, until
from support.faults.sweeps import sweeping
from support.faults.workers import Workers


async def test_what_runs_may_end_within_the_grace(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.HOLD, 2)
    worker = workers.start()
    async with sweeping(broker_vhost.url, tmp_path, grace_seconds=60) as sweep:
        held = await fates.until_held(2)
        await until(lambda: sweep.fleet.busy == 2, "the coordinator knows")
        sweep.stop.request()
        await worker.logged("worker.sweep_cancelled")
        fates.release()
        result = await sweep.result()
    assert result.status == "interrupted"
    assert sorted(sweep.found_ids) == sorted(start.evaluation_id for start in held)
    assert {record.outcome for record in sweep.records} == {"feasible"}
    # Nothing that waited was started.
    assert fates.starts == held
    await check_nothing_is_left(workers, broker_vhost, "sweep")


@pytest.mark.parametrize("grace_seconds", [0.0, 0.5])
async def test_what_still_runs_after_it_is_ended(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path, grace_seconds: float
) -> None:
    fates.lay_out(Fate.HOLD, 2)
    workers.start()
    async with sweeping(broker_vhost.url, tmp_path, grace_seconds=grace_seconds) as sweep:
        held = await fates.until_held(2)
        sweep.stop.request()
        result = await sweep.result()
    assert (result.status, sweep.records) == ("interrupted", [])
    await until(lambda: not fates.running, "their children are gone")
    assert fates.starts == held
    assert len(workers.running) == 1
    await check_nothing_is_left(workers, broker_vhost, "sweep")


async def test_a_second_interrupt_ends_the_grace(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.HOLD, 2)
    worker = workers.start()
    async with sweeping(broker_vhost.url, tmp_path, grace_seconds=600) as sweep:
        await fates.until_held(2)
        await until(lambda: sweep.fleet.busy == 2, "the coordinator knows")
        sweep.stop.request()
        await worker.logged("worker.sweep_cancelled")
        sweep.abort()
        with pytest.raises(asyncio.CancelledError):
            await sweep.result()
    await until(lambda: not fates.running, "their children are gone")
    await check_nothing_is_left(workers, broker_vhost, "sweep")


@pytest.mark.slow
async def test_without_a_broker_it_ends_all_the_same(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.HOLD, 2)
    workers.start()
    async with sweeping(broker_vhost.url, tmp_path, grace_seconds=1) as sweep:
        await fates.until_held(2)
        await asyncio.to_thread(broker_vhost.node.kill)
        sweep.stop.request()
        result = await sweep.result()
    assert (result.status, sweep.records) == ("interrupted", [])
    await asyncio.to_thread(broker_vhost.node.start)
    fates.release()
    # Nobody could tell the workers, and nobody waits: what they have is of no use.
    await until(lambda: not fates.running, "nothing runs any more")
    await workers.drain()
