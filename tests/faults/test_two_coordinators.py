"""Two sweeps that share the requests' queue, the workers and the dead letters."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

from support.broker import VirtualHost
from support.faults.check import check_exact, check_nothing_is_left
from support.faults.fates import WAIT_SECONDS, Fate, Fates
from support.faults.sweeps import sweeping
from support.faults.workers import FINGERPRINT, Workers

from schemas.messages import Cause, EvaluationRequested
from spica_async.bus.address import BrokerAddress
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.topology import requests_queue

PARALLEL = 4


async def test_each_gets_its_own(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.KILL_CHILD, 2)
    fates.lay_out(Fate.HOLD, 1)
    workers.start()
    workers.start()
    url = broker_vhost.url
    async with (
        sweeping(url, tmp_path, sweep_id="one") as one,
        sweeping(url, tmp_path, sweep_id="two", candidates=27) as two,
    ):
        await one.found(4)
        await two.found(4)
        workers.all[0].signal(signal.SIGKILL)
        fates.release()
        results = [await one.result(), await two.result()]
    poisonous = fates.taken(Fate.KILL_CHILD)
    for sweep, result in zip((one, two), results, strict=True):
        own = [name for name in poisonous if name.startswith(sweep.sweep_id)]
        await check_exact(sweep, result, failed=dict.fromkeys(own, "child_died"))
    await check_nothing_is_left(workers, broker_vhost, "one", "two")


async def test_dead_letters_find_the_sweep_that_they_are_of(
    broker_vhost: VirtualHost, workers: Workers, tmp_path: Path
) -> None:
    url = broker_vhost.url
    async with (
        sweeping(url, tmp_path, sweep_id="one", parallel=PARALLEL) as one,
        sweeping(url, tmp_path, sweep_id="two", parallel=PARALLEL) as two,
    ):
        refused = await reject_requests(url, of_each=2)
        assert len(refused) == 4
        workers.start()
        results = [await one.result(), await two.result()]
    for sweep, result in zip((one, two), results, strict=True):
        own = [name for name in refused if name.startswith(sweep.sweep_id)]
        failed: dict[str, Cause] = dict.fromkeys(own, "request_refused")
        await check_exact(sweep, result, failed=failed)
    await check_nothing_is_left(workers, broker_vhost, "one", "two")


async def test_one_is_killed_by_its_user_and_the_other_goes_on(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.HOLD, 4)
    workers.start()
    workers.start()
    url = broker_vhost.url
    async with (
        sweeping(url, tmp_path, sweep_id="one") as one,
        sweeping(url, tmp_path, sweep_id="two") as two,
    ):
        await fates.until_held(4)
        one.stop.request()
        assert (await one.result()).status == "interrupted"
        fates.release()
        result = await two.result()
    await check_exact(two, result)
    assert one.records == []
    await check_nothing_is_left(workers, broker_vhost, "one", "two")


async def reject_requests(url: str, *, of_each: int) -> list[str]:
    """Refuse requests as a worker does that cannot read them; returns their ids.

    So many of each sweep, once both have sent what they may have in flight.
    """
    refused: list[str] = []
    taken: Counter[str] = Counter()
    async with (
        RabbitBus.open(
            BrokerAddress.from_options(url), name="stranger", private_queues="spica.worker.x"
        ) as bus,
        bus.consume(requests_queue(FINGERPRINT).name, prefetch=2 * PARALLEL) as consumer,
        asyncio.timeout(WAIT_SECONDS),
    ):
        deliveries = [await anext(consumer) for _ in range(2 * PARALLEL)]
        for delivery in deliveries:
            request = EvaluationRequested.model_validate_json(delivery.message.body).data
            taken[request.sweep_id] += 1
            if taken[request.sweep_id] > of_each:
                await delivery.nack(requeue=True)
            else:
                refused.append(request.evaluation_id)
                await delivery.nack(requeue=False)
    return refused
