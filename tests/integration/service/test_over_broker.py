"""What a daemon tells and is told over a broker."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support.broker import BrokerNode, VirtualHost
from support.daemon_commands import ANSWERS, Client
from support.daemons import BUDGET, daemon, make_quick, small_config
from support.searching import FakeWorker, succeed_or_fail
from support.subscribers import assert_whole, bus_at, read, subscribed

from schemas.daemon import SweepCommand, SweepSubmission
from schemas.lifecycle import BestImproved
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Bus, BusUnavailableError, Message
from spica_async.bus.topology import COMMANDS_QUEUE, DEAD_QUEUE
from spica_async.journal.port import Lease, NewSweep
from spica_async.journal.sql import SqlJournal
from spica_async.report.folder import config_document
from spica_async.service.commands import Commands
from spica_async.service.outbox import Outbox
from spica_async.storage.errors import StorageUnavailableError

EXAMPLE = Path(__file__).parents[3] / "examples" / "deploy_on_best.py"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


async def test_events_reach_subscribers_though_connections_break(
    where: Path, tmp_path: Path, broker_vhost: VirtualHost
) -> None:
    node, url = broker_vhost.node, broker_vhost.url
    async with subscribed(url) as queue, bus_at(url, "daemon") as bus, bus_at(url, "worker") as own:
        gate = asyncio.Semaphore(0)
        worker = FakeWorker(own, measure=succeed_or_fail, slots=2, gate=gate)
        async with daemon(where, tmp_path, bus=bus, worker=worker, workers_bus=own) as run:
            outbox = Outbox(run.journal, bus, run.manager.runs)
            run.manager.on_change = outbox.wake
            publishing = asyncio.ensure_future(outbox.run())
            sweep_id = await run.submit()
            for _ in range(4):
                for _ in range(5):
                    gate.release()
                await asyncio.sleep(0.3)
                node.close_connections("spica-daemon")
            for _ in range(1000):
                gate.release()
            detail = await run.until(sweep_id, "completed")
            events = await read(queue)
            publishing.cancel()
            await asyncio.wait({publishing})
    assert detail.tally.feasible == BUDGET
    assert_whole(events)
    assert events[0].data.kind == "sweep.submitted"


@pytest.mark.slow
async def test_events_wait_for_a_broker_that_is_away(
    where: Path, tmp_path: Path, broker: BrokerNode
) -> None:
    broker.recover()
    async with daemon(where, tmp_path) as run:
        ids = [await run.submit() for _ in range(2)]
        for sweep_id in ids:
            await run.until(sweep_id, "completed")
    broker.add_vhost("outbox")
    url = broker.url(vhost="outbox")
    try:
        async with (
            SqlJournal.open(where) as journal,
            bus_at(url, "daemon", patience_seconds=1) as bus,
        ):
            outbox = Outbox(journal, bus)
            async with subscribed(url):
                pass
            broker.stop()
            with pytest.raises(BusUnavailableError):
                await outbox.publish_all()
            assert await journal.unpublished() == ids
            broker.start()
            async with subscribed(url) as queue:
                async with asyncio.timeout(60):
                    while await journal.unpublished():
                        with suppress(BusUnavailableError):
                            await outbox.publish_all()
                for sweep_id in ids:
                    events = await read(queue)
                    assert_whole(events)
                    assert {event.subject for event in events} == {sweep_id}
                await outbox.publish_all()
                assert await queue.get(no_ack=True, fail=False) is None
    finally:
        broker.delete_vhost("outbox")


async def test_the_example_deploys_each_improvement_once(
    where: Path, tmp_path: Path, broker_vhost: VirtualHost
) -> None:
    async with daemon(where, tmp_path) as run:
        sweep_id = await run.submit()
        await run.until(sweep_id, "completed")
        told = [event async for event in run.events(sweep_id)]
    best = [event.data.candidate for event in told if isinstance(event.data, BestImproved)]
    assert len(best) > 1
    example = subprocess.Popen(  # noqa: ASYNC220  # it starts in no time
        [sys.executable, EXAMPLE, broker_vhost.url], stdout=subprocess.PIPE, text=True
    )
    try:
        async with (
            SqlJournal.open(where) as journal,
            bus_at(broker_vhost.url, "daemon") as bus,
        ):
            await asyncio.to_thread(_wait_for_queue, broker_vhost)
            await Outbox(journal, bus).publish_all()
            # As after a crash between the telling and the note of it.
            for event in told:
                body = event.model_dump_json().encode()
                message = Message(body, event.id, event.type)
                await bus.publish_event(event.data.kind, message, confirmed=True)
        assert example.stdout is not None
        lines = [await asyncio.to_thread(example.stdout.readline) for _ in best]
        await asyncio.sleep(0.5)
    finally:
        example.kill()
        rest, _ = example.communicate()
    assert rest == ""
    for line, candidate in zip(lines, best, strict=True):
        assert line.startswith(f"{sweep_id}: deploying {candidate.candidate_id}, score ")
        assert json.loads(line.partition(": {")[2].join(["{", ""])) == candidate.config


def _wait_for_queue(vhost: VirtualHost) -> None:
    import time

    deadline = time.monotonic() + 30
    while "deploy-on-best" not in vhost.node.ctl("list_bindings", "--vhost", vhost.name):
        assert time.monotonic() < deadline
        time.sleep(0.2)


async def test_commands_are_obeyed_and_answered(where: Path, tmp_path: Path, bus: Bus) -> None:
    async with daemon(where, tmp_path, bus=bus) as run, asyncio.TaskGroup() as group:
        await bus.declare_queue(DEAD_QUEUE)
        await bus.declare_queue(COMMANDS_QUEUE)
        await bus.declare_queue(ANSWERS)
        obeying = group.create_task(Commands(bus, run.manager, "spica/daemon/test").run())
        client = Client(bus)
        submission = SweepSubmission(config=config_document(small_config()), use_cache=False)
        submit = SweepCommand(action="submit", submission=submission)

        first = await client.ask(submit, id_="one")
        again = await client.ask(submit, id_="one")
        assert first.sweep is not None
        assert again.sweep is not None
        sweep_id = first.sweep.sweep_id
        assert again.sweep.sweep_id == sweep_id
        await run.until(sweep_id, "completed")

        late = await client.ask(SweepCommand(action="pause", sweep_id=sweep_id))
        assert late.problem is not None
        assert (late.problem.status, late.sweep) == (409, None)
        unknown = await client.ask(SweepCommand(action="cancel", sweep_id="x"))
        assert unknown.problem is not None
        assert unknown.problem.status == 404
        wrong = SweepSubmission(config={**submission.config, "goal": {"target": "speed"}})
        refused = await client.ask(SweepCommand(action="submit", submission=wrong))
        assert refused.problem is not None
        assert refused.problem.status == 422
        assert refused.problem.detail.startswith("goal.target: ")
        for bare in ("submit", "resume"):
            answer = await client.ask(SweepCommand.model_validate({"action": bare}))
            assert answer.problem is not None
            assert answer.problem.detail.endswith(": required")
        assert len(await run.listed()) == 1

        await client.send(b"{}", "two")
        await client.send(b"{}", "three", "something.else")
        async with asyncio.timeout(30), bus.consume(DEAD_QUEUE.name, prefetch=2) as dead:
            died = set()
            async for delivery in dead:
                died.add(delivery.message.message_id)
                await delivery.ack()
                if len(died) == 2:
                    break
        assert died == {"two", "three"}
        obeying.cancel()


async def test_commands_wait_for_a_journal_that_is_away(
    where: Path, tmp_path: Path, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with daemon(where, tmp_path, bus=bus) as run, asyncio.TaskGroup() as group:
        for queue in (DEAD_QUEUE, COMMANDS_QUEUE, ANSWERS):
            await bus.declare_queue(queue)
        create = SqlJournal.create
        tries = 0

        async def away(self: SqlJournal, sweep: NewSweep) -> None:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise StorageUnavailableError("away")
            await create(self, sweep)

        monkeypatch.setattr(SqlJournal, "create", away)
        obeying = group.create_task(Commands(bus, run.manager, "spica/daemon/test").run())
        submission = SweepSubmission(config=config_document(small_config()), use_cache=False)
        answer = await Client(bus).ask(SweepCommand(action="submit", submission=submission))
        assert answer.sweep is not None
        await run.until(answer.sweep.sweep_id, "completed")
        obeying.cancel()
    assert tries == 3


async def test_a_bug_is_answered_and_its_command_does_not_come_again(
    where: Path, tmp_path: Path, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with daemon(where, tmp_path, bus=bus) as run, asyncio.TaskGroup() as group:
        for queue in (DEAD_QUEUE, COMMANDS_QUEUE, ANSWERS):
            await bus.declare_queue(queue)

        async def broken(sweep_id: str) -> None:
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(run.manager, "cancel", broken)
        obeying = group.create_task(Commands(bus, run.manager, "spica/daemon/test").run())
        client = Client(bus)
        answer = await client.ask(SweepCommand(action="cancel", sweep_id="x"))
        assert answer.problem is not None
        assert answer.problem.status == 500
        assert "ZeroDivisionError" in answer.problem.detail
        unknown = await client.ask(SweepCommand(action="pause", sweep_id="x"))
        assert unknown.problem is not None
        assert unknown.problem.status == 404
        obeying.cancel()


async def test_an_event_that_cannot_be_read_stops_no_other(where: Path, tmp_path: Path) -> None:
    async with daemon(where, tmp_path) as run:
        ids = [await run.submit() for _ in range(2)]
        for sweep_id in ids:
            await run.until(sweep_id, "completed")
    with sqlite3.connect(where) as changed:
        changed.execute("UPDATE events SET body = 'x' WHERE sweep_id = ? AND number = 3", ids[:1])
    bus = MemoryBus()
    async with SqlJournal.open(where) as journal, bus.subscribe("#") as events:
        count = sum(row.events for row in await journal.sweeps())
        await Outbox(journal, bus).publish_all()
        assert await journal.unpublished() == []
        told = [await anext(events) for _ in range(count - 1)]
    ended = [event for event in told if event.topic == "sweep.finished"]
    assert len(ended) == 2


async def test_what_another_daemon_tells_of_is_left_to_it(where: Path, tmp_path: Path) -> None:
    async with daemon(where, tmp_path) as run:
        sweep_id = await run.submit()
        await run.until(sweep_id, "completed")
    bus = MemoryBus()
    async with SqlJournal.open(where) as journal, bus.subscribe("#"):
        await journal.take(sweep_id, Lease("another", 30))
        await Outbox(journal, bus).publish_all()
        assert await journal.unpublished() == [sweep_id]
        await journal.give_back(sweep_id, "another")
        await Outbox(journal, bus).publish_all()
        assert await journal.unpublished() == []
        assert (await journal.sweep(sweep_id)).owner is None
