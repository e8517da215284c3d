"""Queues that somebody else made, or deletes, and what becomes of the sweep that needs them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from support.broker import VirtualHost
from support.faults.check import check_exact, check_nothing_is_left
from support.faults.fates import WAIT_SECONDS, Fate, Fates, until
from support.faults.sweeps import sweeping
from support.faults.workers import FINGERPRINT, Workers

from spica_async.bus.address import BrokerAddress
from spica_async.bus.port import QueueNotFoundError, QueueSpec
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.topology import DEAD_QUEUE, declare, requests_queue, results_queue
from spica_async.errors import SpicaError

REQUESTS = requests_queue(FINGERPRINT)
RESULTS = results_queue("sweep")


@pytest.fixture
async def operator(broker_vhost: VirtualHost) -> AsyncIterator[RabbitBus]:
    """A bus with every right."""
    async with RabbitBus.open(
        BrokerAddress.from_options(broker_vhost.url), name="operator", private_queues="operator"
    ) as bus:
        yield bus


class TestPredeclaredWithOtherArguments:
    @pytest.mark.parametrize("spec", [REQUESTS, RESULTS, DEAD_QUEUE], ids=lambda spec: spec.name)
    @pytest.mark.parametrize(
        "arguments",
        [
            pytest.param({}, id="classic"),
            pytest.param({"x-queue-type": "quorum", "x-max-length": 5}, id="bounded"),
        ],
    )
    async def test_ends_a_sweep_with_one_message(
        self, broker_vhost: VirtualHost, tmp_path: Path, spec: QueueSpec, arguments: dict[str, Any]
    ) -> None:
        await declare_by_hand(broker_vhost, spec.name, arguments)
        async with sweeping(broker_vhost.url, tmp_path) as sweep:
            with pytest.raises(SpicaError, match=f"queue {spec.name}") as raised:
                await sweep.result()
        assert type(raised.value) is SpicaError
        assert sweep.records == []

    async def test_ends_a_worker_with_one_message(
        self, broker_vhost: VirtualHost, workers: Workers
    ) -> None:
        await declare_by_hand(broker_vhost, REQUESTS.name, {})
        worker = workers.start()
        assert await worker.ended() == 1
        [line] = [line for line in worker.log.splitlines() if line.startswith("error: ")]
        assert REQUESTS.name in line
        assert "Traceback" not in worker.log


class TestDeletedInMidSweep:
    @pytest.mark.parametrize(
        "hears_of_it",
        [
            "by-the-next-request",
            "by-looking",
            pytest.param("of-silent-workers", marks=pytest.mark.slow),
        ],
    )
    async def test_requests(
        self,
        *,
        broker_vhost: VirtualHost,
        workers: Workers,
        fates: Fates,
        operator: RabbitBus,
        tmp_path: Path,
        hears_of_it: str,
    ) -> None:
        silent = hears_of_it == "of-silent-workers"
        fates.lay_out(Fate.HOLD, 2)
        worker = workers.start()
        async with sweeping(broker_vhost.url, tmp_path, impatient=not silent) as sweep:
            await fates.until_held(2)
            await until(lambda: sweep.fleet.busy == 2, "the coordinator knows")
            if silent:
                # As on a host that is far too busy.
                worker.signal(signal.SIGSTOP)
                await until(lambda: not sweep.fleet.workers, "it seems to be gone")
            waiting = (await operator.queue_status(REQUESTS.name)).ready
            assert waiting == 2
            await operator.delete_queue(REQUESTS.name)
            if hears_of_it != "by-the-next-request":
                await until_there(operator, REQUESTS.name)
            if silent:
                worker.signal(signal.SIGCONT)
            fates.release()
            result = await sweep.result()
        await check_exact(sweep, result, may_resend=True)
        # What a worker holds is not sent again.
        assert result.tally.resent_requests == waiting
        assert len(fates.starts) == sweep.budget
        await check_nothing_is_left(workers, broker_vhost, "sweep")

    async def test_results(
        self,
        broker_vhost: VirtualHost,
        workers: Workers,
        fates: Fates,
        operator: RabbitBus,
        tmp_path: Path,
    ) -> None:
        fates.lay_out(Fate.HOLD, 2)
        workers.start()
        async with sweeping(broker_vhost.url, tmp_path, impatient=True) as sweep:
            await fates.until_held(2)
            await operator.delete_queue(RESULTS.name)
            fates.release()
            result = await sweep.result()
        await check_exact(sweep, result, may_resend=True)
        assert len(fates.starts) == sweep.budget
        await check_nothing_is_left(workers, broker_vhost, "sweep")

    @pytest.mark.slow
    async def test_all_of_them_again_and_again(
        self,
        broker_vhost: VirtualHost,
        workers: Workers,
        operator: RabbitBus,
        tmp_path: Path,
    ) -> None:
        workers.start()
        async with sweeping(broker_vhost.url, tmp_path, impatient=True) as sweep:
            for found in (1, 5, 9, 13):
                await sweep.found(found)
                for spec in (REQUESTS, RESULTS, DEAD_QUEUE):
                    await operator.delete_queue(spec.name)
            result = await sweep.result()
        await check_exact(sweep, result, may_resend=True)
        await check_nothing_is_left(workers, broker_vhost, "sweep")

    async def test_a_user_who_may_not_declare_waits_for_an_operator(
        self,
        broker_vhost: VirtualHost,
        workers: Workers,
        fates: Fates,
        operator: RabbitBus,
        tmp_path: Path,
    ) -> None:
        fates.lay_out(Fate.HOLD, 2)
        await declare(operator, REQUESTS)
        broker_vhost.node.add_user(
            "coordinator",
            "secret",
            vhost=broker_vhost.name,
            configure=r"^spica\.results\..*",
            write=r"^(amq\.default|spica\.(control|results\..*))$",
            read=r"^spica\.(events|control|dead|results\..*)$",
        )
        workers.start()
        url = broker_vhost.node.url(user="coordinator", password="secret", vhost=broker_vhost.name)
        async with sweeping(url, tmp_path) as sweep:
            await fates.until_held(2)
            await operator.delete_queue(REQUESTS.name)
            fates.release()
            told = await until(lambda: sweep.fleet.waiting_for or "", "it says what it needs")
            assert REQUESTS.name in told
            assert "topology declare" in told
            await declare(operator, REQUESTS)
            result = await sweep.result()
        await check_exact(sweep, result, may_resend=True)
        await check_nothing_is_left(workers, broker_vhost, "sweep")


async def declare_by_hand(vhost: VirtualHost, queue: str, arguments: dict[str, Any]) -> None:
    async with await aio_pika.connect(vhost.url) as connection:
        channel = await connection.channel()
        await channel.declare_queue(queue, durable=True, arguments=arguments)


async def until_there(bus: RabbitBus, queue: str) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            try:
                await bus.queue_status(queue)
            except QueueNotFoundError:
                await asyncio.sleep(0.05)
            else:
                return
