"""Workers and children that are killed, stopped and drained while a sweep runs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from support.broker import VirtualHost
from support.faults.check import check_exact, check_nothing_is_left
from support.faults.fates import Fate, Fates, until
from support.faults.sweeps import sweeping
from support.faults.workers import Workers


async def test_without_a_fault_nothing_is_evaluated_twice(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    workers.start()
    workers.start()
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        result = await sweep.result()
    await check_exact(sweep, result)
    assert len(fates.starts) == sweep.budget
    assert result.tally.late_results == 0
    await check_nothing_is_left(workers, broker_vhost, "sweep")


async def test_a_worker_is_killed_in_mid_replay(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.HOLD, 2)
    killed = workers.start()
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        lost = await fates.until_held(2)
        workers.start()
        await sweep.found(1)
        killed.signal(signal.SIGKILL)
        assert await killed.ended() == -signal.SIGKILL
        fates.release()
        result = await sweep.result()
    await check_exact(sweep, result)
    again = [start for start in fates.starts if start.worker_pid != killed.pid]
    assert {start.evaluation_id for start in lost} <= {start.evaluation_id for start in again}
    assert len(fates.starts) == sweep.budget + 2
    await check_nothing_is_left(workers, broker_vhost, "sweep")


async def test_a_child_is_killed_in_mid_replay(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.HOLD)
    worker = workers.start()
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        [lost] = await fates.until_held(1)
        await sweep.found(2)
        os.kill(lost.child_pid, signal.SIGKILL)
        [again] = await until(
            lambda: [start for start in fates.held if start != lost], "it is held again"
        )
        assert again.evaluation_id == lost.evaluation_id
        assert (again.worker_pid, again.child_pid != lost.child_pid) == (worker.pid, True)
        fates.release()
        result = await sweep.result()
    await check_exact(sweep, result)
    assert len(fates.starts) == sweep.budget + 1
    assert len(worker.events("worker.child_died")) == 1
    await check_nothing_is_left(workers, broker_vhost, "sweep")


async def test_every_worker_is_killed_at_once_and_others_come_later(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.HOLD, 3)
    workers.start()
    workers.start()
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        await fates.until_held(3)
        await sweep.found(1)
        for worker in workers.running:
            worker.signal(signal.SIGKILL)
        await workers.check_nothing_is_left()
        await until(lambda: sweep.fleet.waiting_for, "it says what it waits for")
        found = len(sweep.records)
        fates.release()
        workers.start()
        workers.start()
        result = await sweep.result()
    assert found < sweep.budget
    await check_exact(sweep, result)
    await check_nothing_is_left(workers, broker_vhost, "sweep")


async def test_a_worker_drains_and_another_goes_on(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.HOLD, 2)
    leaving = workers.start(drain_seconds=60)
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        held = await fates.until_held(2)
        leaving.signal(signal.SIGTERM)
        await leaving.logged("worker.draining")
        workers.start()
        await sweep.found(1)
        fates.release()
        assert await leaving.ended() == 0
        result = await sweep.result()
    await check_exact(sweep, result)
    # What ran when the signal came has ended where it was, and is all that this worker did.
    assert [start for start in fates.starts if start.worker_pid == leaving.pid] == held
    assert len(fates.starts) == sweep.budget
    await check_nothing_is_left(workers, broker_vhost, "sweep")


async def test_what_does_not_end_in_the_drain_is_given_back(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.HOLD, 2)
    leaving = workers.start(drain_seconds=0.1)
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        await fates.until_held(2)
        leaving.signal(signal.SIGTERM)
        assert await leaving.ended() == 0
        workers.start()
        fates.release()
        result = await sweep.result()
    await check_exact(sweep, result)
    assert len(fates.starts) == sweep.budget + 2
    await check_nothing_is_left(workers, broker_vhost, "sweep")


async def test_the_result_of_a_worker_that_was_stopped_past_its_lease_is_late(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.HOLD, 2)
    workers.start(slots=1)
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        [last] = await fates.until_held(1)
        stopped = workers.start(slots=1, url=f"{broker_vhost.url}?heartbeat=1")
        await fates.until_held(2)
        [lost] = [start for start in fates.held if start.worker_pid == stopped.pid]
        stopped.signal(signal.SIGSTOP)
        other = workers.start(slots=1)
        await until(
            lambda: [
                start
                for start in fates.held
                if (start.evaluation_id, start.worker_pid) == (lost.evaluation_id, other.pid)
            ],
            "the broker has given it to another worker",
        )
        fates.release(lost.evaluation_id)
        await until(lambda: lost.evaluation_id in sweep.found_ids, "its result is there")
        stopped.signal(signal.SIGCONT)
        # It has sent its own result by then.
        await stopped.logged("worker.delivery_lost")
        fates.release(last.evaluation_id)
        result = await sweep.result()
    await check_exact(sweep, result)
    assert result.tally.late_results == 1
    [record] = [one for one in sweep.records if one.candidate_id == lost.evaluation_id]
    assert record.worker == other.name
    await check_nothing_is_left(workers, broker_vhost, "sweep")
