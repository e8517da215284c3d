"""Garbage on every queue and exchange while a sweep runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.broker import VirtualHost
from support.faults.check import check_exact, check_nothing_is_left, until_empty
from support.faults.fates import Fate, Fates, until
from support.faults.litter import (
    Fuzzer,
    Litterer,
    garbage,
    publish_undecodable,
    results_for_nobody,
)
from support.faults.sweeps import sweeping
from support.faults.workers import FINGERPRINT, WorkerProcess, Workers

from schemas.control import SWEEP_CANCELLED
from schemas.events import WORKER_HEARTBEAT
from schemas.messages import EVALUATION_COMPLETED, EVALUATION_REQUESTED
from spica_async.bus.topology import DEAD_QUEUE, requests_queue, results_queue

FUZZED = 10_000
SEED = 20260
COORDINATORS_WARNINGS = (
    "coordinator.result_discarded",
    "coordinator.dead_letter_dropped",
    "coordinator.event_ignored",
)
WORKERS_WARNINGS = ("worker.malformed_message", "worker.unknown_order", "worker.malformed_order")


def check_said_once(worker: WorkerProcess) -> Counter[str]:
    """The worker has warned of each kind once, and counted the rest; returns the counts."""
    for event in WORKERS_WARNINGS:
        kinds = [entry.get("kind") for entry in worker.events(event)]
        assert len(kinds) == len(set(kinds)), f"{event} is repeated: {kinds}"
    [ended] = worker.events("worker.ended")
    return Counter({name: count for name, count in ended.items() if isinstance(count, int)})


def check_counted(logs: Iterable[Any]) -> None:
    """The coordinator has warned of each kind once, and in the end told of all kinds."""
    for event in COORDINATORS_WARNINGS:
        entries = [entry for entry in logs if entry["event"] == event]
        kinds = [entry["kind"] for entry in entries if "kind" in entry]
        assert len(kinds) == len(set(kinds)), f"{event} is repeated: {kinds}"
        [total] = [entry["total"] for entry in entries if "total" in entry]
        assert total.keys() == set(kinds)


async def test_one_of_each_kind_everywhere(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.HOLD)
    worker = workers.start()
    results = results_queue("sweep").name
    to_requests = garbage(EVALUATION_REQUESTED, reply_to=results)
    to_results = garbage(EVALUATION_COMPLETED) + results_for_nobody("sweep")
    to_dead = garbage(EVALUATION_REQUESTED, reply_to=results) + results_for_nobody("sweep")
    to_events = garbage(WORKER_HEARTBEAT)
    to_control = garbage(SWEEP_CANCELLED)
    with capture_logs() as logs:
        async with (
            sweeping(broker_vhost.url, tmp_path) as sweep,
            Litterer.open(broker_vhost, "sweep") as litterer,
        ):
            await fates.until_held(1)
            await litterer.control(to_control)
            await litterer.events(to_events)
            await litterer.dead_letters(to_dead)
            await litterer.results(to_results)
            await litterer.requests(to_requests)
            await sweep.found(sweep.per_round - 1)
            expected = {
                "results": len(to_results),
                # What a worker cannot read dies, and comes to the coordinator that way.
                "dead_letters": len(to_dead) + len(to_requests),
                "events": len(to_events),
            }
            await until(lambda: sweep.dropped == expected, f"{expected} are dropped")
            fates.release()
            result = await sweep.result()
    await check_exact(sweep, result)
    assert len(fates.starts) == sweep.budget
    await check_nothing_is_left(workers, broker_vhost, "sweep")
    counts = check_said_once(worker)
    assert sum(n for name, n in counts.items() if name.startswith("malformed_message/")) == len(
        to_requests
    )
    assert counts["unknown_order"] + counts["malformed_order"] == len(to_control)
    check_counted(logs)


async def test_properties_that_cannot_be_decoded_in_every_queue(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.HOLD, 2)
    workers.start()
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        await fates.until_held(2)
        for queue in (requests_queue(FINGERPRINT), results_queue("sweep"), DEAD_QUEUE):
            await asyncio.to_thread(publish_undecodable, broker_vhost, queue.name)
        fates.release()
        result = await sweep.result()
    await check_exact(sweep, result)
    assert len(fates.starts) == sweep.budget
    await check_nothing_is_left(workers, broker_vhost, "sweep")


@pytest.mark.slow
async def test_fuzzed_messages_by_the_thousand(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.HOLD)
    started = [workers.start(), workers.start()]
    fuzzer = Fuzzer(SEED)
    share = FUZZED // 5
    with capture_logs() as logs:
        async with (
            sweeping(broker_vhost.url, tmp_path) as sweep,
            Litterer.open(broker_vhost, "sweep") as litterer,
        ):
            await fates.until_held(1)
            await litterer.control(fuzzer.control(share))
            await litterer.events(fuzzer.events(share))
            await litterer.dead_letters(fuzzer.dead_letters(share))
            await litterer.results(fuzzer.results(share))
            await litterer.requests(fuzzer.requests(share))
            await sweep.found(sweep.per_round - 1)
            # Of some requests and events enough is sound for them to be taken.
            await until_empty(sweep.bus, requests_queue(FINGERPRINT).name)
            await until(
                lambda: (
                    sweep.dropped["results"] == share
                    and sweep.dropped["dead_letters"] > share
                    and sweep.dropped["events"] > share / 2
                ),
                "they are dropped",
            )
            fates.release()
            result = await sweep.result()
    await check_exact(sweep, result)
    assert [worker.exit_code for worker in started] == [None, None]
    await check_nothing_is_left(workers, broker_vhost, "sweep", littered=True)
    for worker in started:
        check_said_once(worker)
        assert worker.events("worker.child_died") == []
    check_counted(logs)
