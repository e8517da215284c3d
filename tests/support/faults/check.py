"""What must hold at the end of every sweep, whatever happened on the way."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from support.broker import VirtualHost
from support.faults.evaluator import score
from support.faults.fates import WAIT_SECONDS
from support.faults.sweeps import RunningSweep
from support.faults.workers import FINGERPRINT, Workers

from schemas.messages import Cause
from schemas.results import SweepResult
from spica_async.bus.address import BrokerAddress
from spica_async.bus.port import Bus, QueueNotFoundError
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.topology import DEAD_QUEUE, requests_queue, results_queue
from spica_async.space.sample import sample_key


async def check_exact(
    sweep: RunningSweep,
    result: SweepResult,
    *,
    failed: Mapping[str, Cause] | None = None,
    may_resend: bool = False,
) -> None:
    """Each candidate of the budget has one result, its own, and none has two.

    Args:
        sweep: has published its results.
        result: of the sweep, as it was returned.
        failed: the candidates that may not be feasible, and why; all others must be.
        may_resend: whether requests may have been lost on their way, which costs time.

    Raises:
        AssertionError: something was lost, counted twice or mixed up.
    """
    failed = failed or {}
    records = sweep.records
    _equal("results", len(records), sweep.budget)
    _equal("status", result.status, "exhausted")
    _once("candidate", [record.candidate_id for record in records])
    _once("suggestion", [str(record.number) for record in records])
    _once("sample", [sample_key(record.config) for record in records])
    _equal("numbers", {record.number for record in records}, set(range(sweep.budget)))
    causes = {r.candidate_id: r.cause for r in records if r.outcome != "feasible"}
    _equal("failed", causes, dict(failed))
    for record in records:
        if record.metrics is not None:
            _equal("report", record.metrics["output_throughput_tok_s"], score(record.config))
    tally = result.tally
    _equal("feasible", tally.feasible, sweep.budget - len(failed))
    _equal("attempts", tally.attempts, sweep.budget)
    _equal("causes", tally.causes, Counter(failed.values()))
    if not may_resend:
        _equal("requests sent again", tally.resent_requests, 0)
    _once("ranked", [ranked.candidate_id for ranked in result.ranking])
    _equal("ranking", len(result.ranking), sweep.budget - len(failed))
    written = (sweep.folder.path / "candidates.jsonl").read_text().splitlines()
    _equal(
        "written",
        [json.loads(line)["candidate_id"] for line in written],
        [record.candidate_id for record in records],
    )


async def check_nothing_is_left(
    workers: Workers, vhost: VirtualHost, *sweep_ids: str, littered: bool = False
) -> None:
    """After these sweeps no queue holds anything, and drained workers leave no process.

    What has been `littered` and died after the sweeps' end may wait for the next coordinator.

    Raises:
        AssertionError: something is left.
    """
    requests = requests_queue(FINGERPRINT).name
    async with RabbitBus.open(
        BrokerAddress.from_options(vhost.url), name="spica-test", private_queues="spica.worker.test"
    ) as bus:
        if workers.running:
            await until_empty(bus, requests)
        await workers.drain()
        await until_empty(bus, requests)
        if not littered:
            await until_empty(bus, DEAD_QUEUE.name)
        for sweep_id in sweep_ids:
            with suppress(QueueNotFoundError):
                status = await bus.queue_status(results_queue(sweep_id).name)
                raise AssertionError(f"the results queue of {sweep_id} is left: {status}")


async def until_empty(bus: Bus, queue: str) -> None:
    """Wait until nothing waits in a queue, if there is one.

    Raises:
        AssertionError: something still does after a long time.
    """
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    with suppress(QueueNotFoundError):
        while (status := await bus.queue_status(queue)).ready:
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(f"{queue} still has {status.ready} messages")
            await asyncio.sleep(0.1)


def _equal(what: str, found: object, expected: object) -> None:
    assert found == expected, f"{what}: {found}, expected {expected}"


def _once(what: str, names: list[str]) -> None:
    twice = [name for name, times in Counter(names).items() if times > 1]
    assert not twice, f"{what} counted twice: {twice}"
