"""Sweeps whose process dies by SIGKILL and that are resumed by another one."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.broker import VirtualHost
from support.killing.checks import check_each, resumed, uninterrupted
from support.killing.client import Driver, found_in
from support.killing.driver import FINGERPRINT, Command
from support.searching import FakeWorker, succeed_or_fail

from spica_async.bus.address import BrokerAddress
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.topology import declare, requests_queue
from spica_async.storage.address import sqlite_url

BUDGET = 12


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command("sweep", sqlite_url(tmp_path / "journal.sqlite3"), None, str(tmp_path))


@pytest.fixture
async def driver() -> AsyncIterator[Driver]:
    async with Driver.open() as opened:
        yield opened


async def test_a_kill_now_and_then_changes_nothing(driver: Driver, command: Command) -> None:
    chance = random.Random(5)

    def some(steps: list[str]) -> list[int]:
        return chance.sample(range(1, len(steps) + 1), 10)

    assert await check_each(driver, command, some) == 10


async def test_one_kill_after_the_other_changes_nothing(driver: Driver, command: Command) -> None:
    whole, steps = await uninterrupted(driver, command)
    deaths = [len(steps) // 5, *([len(steps) // 6] * 5)]
    assert await resumed(driver, command, *deaths) == whole


async def test_the_continuous_schedule_keeps_the_budget(driver: Driver, command: Command) -> None:
    continuous = replace(command, schedule="continuous")
    for deaths in ([60], [120, 60], [200, 40, 40]):
        found = await resumed(driver, continuous, *deaths)
        assert found.status == "completed"
        assert found.tally["feasible"] == BUDGET
        configs = [json.dumps(record["config"]) for record in found.records.values()]
        assert len(configs) == len(set(configs))


async def test_what_is_measured_again_is_measured_exactly_as_often(
    driver: Driver, command: Command
) -> None:
    noisy = replace(command, schedule="continuous", noisy=True)
    whole, steps = await uninterrupted(driver, noisy)
    assert whole.baseline is not None
    # In the search, in the confirmation, and again and again in that.
    for deaths in ([60], [len(steps) - 40], [120, *([30] * 6)]):
        found = await resumed(driver, noisy, *deaths)
        assert found.status == "completed"
        assert found.tally["feasible"] == BUDGET
        # The fake measures the same each time: four replays of each of the best will do, and of
        # the baseline, and one under each other load. The search has some of its own.
        assert 5 * (3 + 2) + 3 <= found.tally["replicates"] <= 5 * (3 + 2) + 3 + BUDGET // 4
        assert found.baseline == whole.baseline


async def test_a_sweep_that_was_stopped_goes_on(driver: Driver, command: Command) -> None:
    whole, _ = await uninterrupted(driver, command)
    folder = Path(command.root) / command.sweep_id
    for stop_at in (3, 3):
        assert (await driver.run(replace(command, stop_at=stop_at))).code == 0
        assert found_in(folder).status == "interrupted"
    assert (await driver.run(command)).code == 0
    assert found_in(folder) == whole


async def test_one_that_has_ended_is_written_again(driver: Driver, command: Command) -> None:
    command = replace(command, noisy=True)
    assert (await driver.run(command)).code == 0
    folder = Path(command.root) / command.sweep_id
    whole = found_in(folder)
    for name in ("summary.json", "ranking.json", "candidates.jsonl"):
        (folder / name).unlink()
    assert (await driver.run(command)).code == 0
    assert found_in(folder) == whole


@pytest.mark.slow
async def test_over_a_broker_nothing_is_evaluated_twice(
    driver: Driver, command: Command, broker_vhost: VirtualHost
) -> None:
    over_broker = replace(command, bus=broker_vhost.url)
    async with RabbitBus.open(
        BrokerAddress.from_options(broker_vhost.url), name="worker", private_queues="spica.worker"
    ) as bus:
        await declare(bus, requests_queue(FINGERPRINT))
        worker = FakeWorker(bus, measure=succeed_or_fail, slots=2)
        async with worker.running():
            chance = random.Random(6)
            count = await check_each(
                driver, over_broker, lambda steps: chance.sample(range(1, len(steps) + 1), 6)
            )
    assert count == 6
    evaluated = Counter(request.evaluation_id for request in worker.requests)
    assert set(evaluated.values()) == {1}
