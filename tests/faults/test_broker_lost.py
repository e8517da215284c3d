"""A broker that is killed, stopped or short of memory while a sweep runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.broker import VirtualHost
from support.faults.check import check_exact, check_nothing_is_left
from support.faults.fates import Fate, Fates, until
from support.faults.sweeps import sweeping
from support.faults.workers import Workers

from spica_async.bus.rabbitmq.state import BusState


async def test_the_broker_is_killed_and_started_again(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    node = broker_vhost.node
    fates.lay_out(Fate.HOLD, 3)
    workers.start()
    workers.start()
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        await fates.until_held(3)
        await sweep.found(2)
        await asyncio.to_thread(node.kill)
        await until(lambda: sweep.states[-1] is BusState.CONNECTING, "it says that it is away")
        # What ends while there is no broker is told later.
        fates.release()
        await until(lambda: not fates.held, "none is held any more")
        await asyncio.to_thread(node.start)
        result = await sweep.result()
        assert sweep.states[-1] is BusState.CONNECTED
    await check_exact(sweep, result, may_resend=True)
    await check_nothing_is_left(workers, broker_vhost, "sweep")


# A kill, above, is the harder end.
@pytest.mark.slow
async def test_the_broker_is_stopped_and_comes_back_while_replays_run(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    node = broker_vhost.node
    fates.lay_out(Fate.HOLD, 2)
    workers.start()
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        await fates.until_held(2)
        await asyncio.to_thread(node.stop)
        await asyncio.to_thread(node.start)
        fates.release()
        result = await sweep.result()
    await check_exact(sweep, result, may_resend=True)
    # The worker knows its results when the requests come again.
    assert len(fates.starts) == sweep.budget
    await check_nothing_is_left(workers, broker_vhost, "sweep")


async def test_a_memory_alarm_is_raised_and_cleared(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    node = broker_vhost.node
    fates.lay_out(Fate.HOLD, 2)
    worker = workers.start()
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        await fates.until_held(2)
        await asyncio.to_thread(node.set_memory_alarm, on=True)
        fates.release()
        await until(
            lambda: [e for e in worker.events("worker.bus") if e["state"] == "blocked"],
            "the worker says that it is blocked",
        )
        assert sweep.records == []
        await asyncio.to_thread(node.set_memory_alarm, on=False)
        result = await sweep.result()
    await check_exact(sweep, result)
    assert len(fates.starts) == sweep.budget
    assert result.tally.late_results == 0
    await check_nothing_is_left(workers, broker_vhost, "sweep")


async def test_a_memory_alarm_before_the_first_request(
    broker_vhost: VirtualHost, workers: Workers, tmp_path: Path
) -> None:
    node = broker_vhost.node
    workers.start()
    await asyncio.to_thread(node.set_memory_alarm, on=True)
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        await until(lambda: BusState.BLOCKED in sweep.states, "it says that it is blocked")
        await asyncio.to_thread(node.set_memory_alarm, on=False)
        result = await sweep.result()
        assert sweep.states[-1] is BusState.CONNECTED
    await check_exact(sweep, result)
    await check_nothing_is_left(workers, broker_vhost, "sweep")
