"""Every step of a sweep in turn is the one at which its process dies."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from support.broker import VirtualHost
from support.killing.checks import check_each
from support.killing.client import Driver
from support.killing.driver import FINGERPRINT, Command
from support.killing.steps import BUS, SAMPLER, numbers_of
from support.postgres import PostgresNode
from support.searching import FakeWorker, succeed_or_fail

from spica_async.bus.address import BrokerAddress
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.topology import declare, requests_queue
from spica_async.storage.address import sqlite_url

pytestmark = pytest.mark.slow


@pytest.fixture
async def driver() -> AsyncIterator[Driver]:
    async with Driver.open() as opened:
        yield opened


async def test_on_one_machine(driver: Driver, tmp_path: Path) -> None:
    command = Command("sweep", sqlite_url(tmp_path / "journal.sqlite3"), None, str(tmp_path))
    assert await check_each(driver, command, numbers_of) > 200


# All but the journal and the folder dies with the process, so no other step leaves anything that
# the one before has not left.
async def test_with_a_database_server(
    driver: Driver, postgres: PostgresNode, tmp_path: Path
) -> None:
    command = Command("sweep", postgres.url(postgres.add_database()), None, str(tmp_path))
    lasting = partial(numbers_of, without={*BUS, *SAMPLER, "acknowledge"})
    assert await check_each(driver, command, lasting) > 80


# A sampler dies with the process, and with all that it knows.
async def test_over_a_broker(driver: Driver, tmp_path: Path, broker_vhost: VirtualHost) -> None:
    journal = sqlite_url(tmp_path / "journal.sqlite3")
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(
            RabbitBus.open(
                BrokerAddress.from_options(broker_vhost.url),
                name="worker",
                private_queues="spica.worker",
            )
        )
        await declare(bus, requests_queue(FINGERPRINT))
        worker = FakeWorker(bus, measure=succeed_or_fail, slots=2)
        await stack.enter_async_context(worker.running())
        command = Command("sweep", journal, broker_vhost.url, str(tmp_path))
        lasting = partial(numbers_of, without=SAMPLER)
        assert await check_each(driver, command, lasting) > 150
    # A request that was written down and not sent is missed after a while, and another one that
    # only seems to be missing may then be sent again.
    evaluated = Counter(request.evaluation_id for request in worker.requests)
    twice = [name for name, count in evaluated.items() if count > 1]
    assert len(twice) <= len(evaluated) // 50
