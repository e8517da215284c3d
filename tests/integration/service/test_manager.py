"""Many sweeps side by side, over a real journal."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from support.daemons import (
    BUDGET,
    RunningDaemon,
    daemon,
    make_quick,
    quick_inputs,
    small_config,
)
from support.searching import FakeWorker, succeed_or_fail

from schemas.config import SmartSearchConfig
from schemas.journal import SWEEP_FACT, Started
from schemas.lifecycle import SWEEP_EVENT, SweepEvent, SweepFinished, SweepStarted
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import BusUnavailableError, Message
from spica_async.bus.rabbitmq.state import BusState
from spica_async.config.inputs import Inputs
from spica_async.errors import InputError
from spica_async.evaluate.cache.port import NoCache
from spica_async.journal.leases import this_owner
from spica_async.journal.port import Fact, Lease, StatusUpdate, SweepUnknownError
from spica_async.journal.sql import SqlJournal
from spica_async.plan.types import Progress, SweepPlan
from spica_async.service.jobs import ResumedJob, new_sweep
from spica_async.service.manager import SweepManager
from spica_async.service.port import QueueFullError, WrongStateError
from spica_async.service.runner import ManagerSettings, SweepRunner
from spica_async.storage.errors import StorageFullError


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)


def gated(gate: asyncio.Semaphore) -> FakeWorker:
    return FakeWorker(MemoryBus(), measure=succeed_or_fail, slots=2, gate=gate)


async def starts(where: Path, sweep_id: str) -> int:
    """How often a coordinator has gone to work on it."""
    async with SqlJournal.open(where) as journal:
        facts = [SWEEP_FACT.validate_json(one.fact.body) async for one in journal.facts(sweep_id)]
    return sum(isinstance(fact, Started) for fact in facts)


async def test_a_sweep_from_its_submission_to_its_end(where: Path, tmp_path: Path) -> None:
    async with daemon(where, tmp_path) as run:
        sweep_id = await run.submit()
        async with asyncio.timeout(60):
            events = [event async for event in run.events(sweep_id)]
            assert [event async for event in run.events(sweep_id, after=5)] == events[5:]
        detail = await run.until(sweep_id, "completed")
        page = await run.manager.candidates(sweep_id, offset=2, limit=3)
        (listed,) = await run.listed()
    assert detail.tally.feasible == listed.feasible == BUDGET
    assert listed.best_score == detail.best[0].score
    assert detail.reason is not None
    assert "found all" in detail.reason
    assert {branch.branch for branch in detail.branches} == {"agg", "disagg"}
    assert page.total == detail.tally.feasible + detail.tally.failed
    assert len(page.candidates) == 3
    assert [event.sequence for event in events] == [*range(1, len(events) + 1)]
    assert isinstance(events[-1].data, SweepFinished)
    measured = [event for event in events if event.data.kind == "candidate.measured"]
    assert len(measured) == page.total
    # Its folder has all that a command's has.
    assert {path.name for path in (tmp_path / sweep_id).iterdir()} == {
        *("config.yaml", "plan.json", "candidates.jsonl", "ranking.json", "summary.json", "logs"),
    }


async def test_higher_priority_begins_first_and_no_more_than_asked_side_by_side(
    where: Path, tmp_path: Path
) -> None:
    gate = asyncio.Semaphore(0)
    begun: list[SweepEvent] = []

    async def listen(events: AsyncIterator[SweepEvent]) -> None:
        async for event in events:
            if isinstance(event.data, SweepStarted):
                begun.append(event)  # noqa: PERF401  # as they come

    async with daemon(where, tmp_path, worker=gated(gate), parallel_sweeps=1) as run:
        listening = asyncio.ensure_future(listen(run.events(None)))
        first = await run.submit()
        await run.until(first, "running")
        low = await run.submit(priority=1)
        high = await run.submit(priority=5)
        assert {one.state for one in await run.listed()} == {"running", "queued"}
        for _ in range(1000):
            gate.release()
        for sweep_id in (first, low, high):
            await run.until(sweep_id, "completed")
        async with asyncio.timeout(10):
            while len(begun) < 3:  # noqa: ASYNC110  # told a moment later
                await asyncio.sleep(0.02)
        listening.cancel()
    # Of several sweeps nothing is told in any order.
    begun.sort(key=lambda event: event.time)
    assert [event.subject for event in begun] == [first, high, low]


async def test_pause_resume_and_cancel(where: Path, tmp_path: Path) -> None:
    gate = asyncio.Semaphore(5)
    async with daemon(where, tmp_path, worker=gated(gate)) as run:
        manager = run.manager
        sweep_id = await run.submit()
        await run.until(sweep_id, "running")
        with pytest.raises(WrongStateError, match="is running"):
            await manager.resume(sweep_id)
        await manager.pause(sweep_id)
        paused = await run.until(sweep_id, "paused")
        assert paused.elapsed_seconds > 0
        with pytest.raises(WrongStateError, match="is paused"):
            await manager.pause(sweep_id)
        await asyncio.sleep(0.3)
        assert (await manager.sweep(sweep_id)).state == "paused"
        await manager.resume(sweep_id)
        await run.until(sweep_id, "running")
        await manager.cancel(sweep_id)
        await run.until(sweep_id, "cancelled")
        with pytest.raises(WrongStateError):
            await manager.cancel(sweep_id)
        for _ in range(1000):
            gate.release()
        await manager.resume(sweep_id)
        detail = await run.until(sweep_id, "completed")
        assert detail.tally.feasible == BUDGET
        with pytest.raises(WrongStateError):
            await manager.pause(sweep_id)
        async with asyncio.timeout(10):
            events = [event async for event in run.events(sweep_id)]
    kinds = [event.data.kind for event in events]
    assert kinds.count("sweep.paused") == kinds.count("sweep.cancelled") == 1
    assert kinds.count("sweep.started") == 3
    assert [event.sequence for event in events] == [*range(1, len(events) + 1)]


async def test_what_waits_can_be_paused_and_cancelled(where: Path, tmp_path: Path) -> None:
    gate = asyncio.Semaphore(0)
    async with daemon(where, tmp_path, worker=gated(gate), parallel_sweeps=1) as run:
        first = await run.submit()
        await run.until(first, "running")
        second = await run.submit()
        assert (await run.manager.pause(second)).state == "paused"
        assert (await run.manager.resume(second)).state == "queued"
        assert (await run.manager.cancel(second)).state == "cancelled"
        async with asyncio.timeout(10):
            events = [event.data.kind async for event in run.events(second)]
    assert events == ["sweep.submitted", "sweep.paused", "sweep.cancelled"]


async def test_a_daemon_that_ends_leaves_its_sweeps_to_the_next(
    where: Path, tmp_path: Path
) -> None:
    async with daemon(where, tmp_path, worker=gated(asyncio.Semaphore(6))) as run:
        ids = [await run.submit() for _ in range(3)]
        await run.until(ids[0], "running")
        while not run.worker.requests:  # noqa: ASYNC110  # the worker sets no event
            await asyncio.sleep(0.01)
    async with SqlJournal.open(where) as journal:
        assert {row.status for row in await journal.sweeps()} == {"queued"}
    async with daemon(where, tmp_path) as run:
        for sweep_id in ids:
            detail = await run.until(sweep_id, "completed")
            assert detail.tally.feasible == BUDGET
    assert await starts(where, ids[0]) == 2


@pytest.mark.parametrize("how", ["dead", "expired"])
async def test_what_a_dead_daemon_ran_is_gone_on_with(
    where: Path, tmp_path: Path, how: str
) -> None:
    # No process has such an id.
    dead = re.sub(r":\d+#", f":{2**22 + 1}#", this_owner()) if how == "dead" else "elsewhere:1#x"
    lease = Lease(dead, 1000.0 if how == "dead" else 0.5)
    async with SqlJournal.open(where) as journal:
        managed = new_sweep("left", small_config(), tmp_path / "left", managed=True)
        await journal.create(managed, lease)
        alive = new_sweep("alive", small_config(), tmp_path / "alive", managed=True)
        await journal.create(alive, Lease("elsewhere:2#y", 1000.0))
        command = new_sweep("command", small_config(), tmp_path / "command")
        await journal.create(command, lease)
    async with daemon(where, tmp_path) as run:
        detail = await run.until("left", "completed")
        assert detail.tally.feasible == BUDGET
        # One is run by somebody who lives, the other by a command that nobody has told us of.
        assert (await run.manager.sweep("alive")).state == "running"
        assert (await run.manager.sweep("command")).state == "running"
    assert await starts(where, "alive") == await starts(where, "command") == 0


async def test_a_wish_on_a_dead_daemons_sweep_is_granted(where: Path, tmp_path: Path) -> None:
    async with SqlJournal.open(where) as journal:
        managed = new_sweep("left", small_config(), tmp_path / "left", managed=True)
        await journal.create(managed, Lease("elsewhere:1#x", 0.01))
        await journal.request("left", "cancel")
    async with daemon(where, tmp_path) as run:
        await run.until("left", "cancelled")
        assert not run.worker.requests


async def test_two_daemons_share_a_store_and_no_sweep(where: Path, tmp_path: Path) -> None:
    async with (
        daemon(where, tmp_path, parallel_sweeps=2) as one,
        daemon(where, tmp_path, parallel_sweeps=2) as other,
    ):
        ids = [await (one, other)[number % 2].submit() for number in range(8)]
        for sweep_id in ids:
            detail = await one.until(sweep_id, "completed")
            assert detail.tally.feasible == BUDGET
        assert one.worker.requests
        assert other.worker.requests
        evaluated = [
            request.evaluation_id for run in (one, other) for request in run.worker.requests
        ]
    assert len(evaluated) == len(set(evaluated))
    for sweep_id in ids:
        assert await starts(where, sweep_id) == 1


async def test_a_daemon_passes_on_what_is_asked_of_anothers_sweep(
    where: Path, tmp_path: Path
) -> None:
    gate = asyncio.Semaphore(2)
    async with daemon(where, tmp_path, worker=gated(gate)) as one:
        sweep_id = await one.submit()
        await one.until(sweep_id, "running")
        async with daemon(where, tmp_path) as other:
            await other.manager.pause(sweep_id)
            await other.until(sweep_id, "paused")
            assert not other.worker.requests


async def test_one_that_cannot_be_planned_fails_by_itself(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with daemon(where, tmp_path) as run:

        class Unplanned(Inputs):
            async def plan(self, progress: object) -> None:  # type: ignore[override]  # it fails
                raise InputError("search_space.gpu_budget: nothing fits")

        sound = await run.submit()
        await run.until(sound, "completed")
        monkeypatch.setattr(
            "spica_async.service.runner.inputs_of",
            lambda config, note: Unplanned(config, None, 1),
        )
        sweep_id = await run.submit()
        detail = await run.until(sweep_id, "failed")
        assert detail.reason == "search_space.gpu_budget: nothing fits"

        def broken(config: SmartSearchConfig, note: object) -> Inputs:
            raise ZeroDivisionError("a bug")

        await asyncio.sleep(0.3)
        monkeypatch.setattr("spica_async.service.runner.inputs_of", broken)
        await run.manager.resume(sweep_id)
        detail = await run.until(sweep_id, "failed")
        while "a bug" not in (detail.reason or ""):
            await asyncio.sleep(0.02)
            detail = await run.manager.sweep(sweep_id)
        assert detail.reason is not None
        assert detail.reason.startswith("unexpected: ZeroDivisionError: a bug")


async def test_no_more_wait_than_may(where: Path, tmp_path: Path) -> None:
    gate = asyncio.Semaphore(0)
    async with daemon(where, tmp_path, worker=gated(gate), parallel_sweeps=1, max_queued=2) as run:
        await run.until(await run.submit(), "running")
        for _ in range(2):
            await run.submit()
        with pytest.raises(QueueFullError, match="2 sweeps are queued"):
            await run.submit()


async def test_a_full_queue_reads_no_trace(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[SmartSearchConfig] = []

    def noted(config: SmartSearchConfig, note: Callable[[str], None]) -> Inputs:
        read.append(config)
        return quick_inputs(config, note)

    monkeypatch.setattr("spica_async.service.runner.inputs_of", noted)
    async with daemon(where, tmp_path, max_queued=1) as run:
        run.manager.runner.on_bus(BusState.CONNECTING, "so that none is begun")
        await run.submit()
        with pytest.raises(QueueFullError):
            await run.submit()
    assert len(read) == 1


async def test_unknown_sweeps(where: Path, tmp_path: Path) -> None:
    async with daemon(where, tmp_path) as run:
        manager = run.manager
        for ask in (manager.sweep, manager.cancel, manager.pause, manager.resume):
            with pytest.raises(SweepUnknownError, match="there is no sweep x"):
                await ask("x")
        with pytest.raises(SweepUnknownError):
            await manager.candidates("x", offset=0, limit=1)
        with pytest.raises(SweepUnknownError):
            await anext(manager.events("x"))


async def status_of(where: Path, sweep_id: str) -> str:
    async with SqlJournal.open(where) as journal:
        return (await journal.sweep(sweep_id)).status


async def kinds_of(where: Path, sweep_id: str) -> list[str]:
    async with SqlJournal.open(where) as journal:
        events = [SWEEP_EVENT.validate_json(one.body) async for one in journal.events(sweep_id)]
    assert [event.sequence for event in events] == [*range(1, len(events) + 1)]
    return [event.data.kind for event in events]


async def begun(run: RunningDaemon) -> str:
    """A sweep that has something under way."""
    sweep_id = await run.submit()
    await run.until(sweep_id, "running")
    async with asyncio.timeout(30):
        while not run.worker.requests:  # noqa: ASYNC110  # the worker sets no event
            await asyncio.sleep(0.01)
    return sweep_id


@pytest.mark.parametrize("first", ["pause", "cancel"])
async def test_what_was_asked_counts_though_the_daemon_ends(
    where: Path, tmp_path: Path, first: str
) -> None:
    async with daemon(where, tmp_path, worker=gated(asyncio.Semaphore(3)), grace_seconds=1) as run:
        sweep_id = await begun(run)
        await getattr(run.manager, first)(sweep_id)
        run.stop.set()
        with suppress(WrongStateError):
            await run.manager.pause(sweep_id)
    assert await status_of(where, sweep_id) == ("paused" if first == "pause" else "cancelled")
    async with daemon(where, tmp_path) as run:
        await asyncio.sleep(0.5)
        assert not run.worker.requests


async def test_a_wish_is_granted_once(where: Path, tmp_path: Path) -> None:
    async with daemon(where, tmp_path, worker=gated(asyncio.Semaphore(3))) as run:
        sweep_id = await begun(run)
        await run.manager.pause(sweep_id)
        await run.until(sweep_id, "paused")
    async with SqlJournal.open(where) as journal:
        assert (await journal.sweep(sweep_id)).requested is None


async def test_a_daemon_that_fails_queues_its_sweeps_too(where: Path, tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup):  # noqa: PT012  # what fails is inside
        async with daemon(where, tmp_path, worker=gated(asyncio.Semaphore(3))) as run:
            sweep_id = await begun(run)
            raise RuntimeError("another part of the daemon has failed")
    assert await status_of(where, sweep_id) == "queued"
    assert (await kinds_of(where, sweep_id))[-1] != "sweep.paused"
    async with daemon(where, tmp_path) as run:
        assert (await run.until(sweep_id, "completed")).tally.feasible == BUDGET


async def test_one_that_cannot_be_read_fails_and_the_others_go_on(
    where: Path, tmp_path: Path
) -> None:
    async with SqlJournal.open(where) as journal:
        sound = new_sweep("broken", small_config(), tmp_path / "broken", managed=True)
        await journal.create(replace(sound, config='{"goal": 7}'))
        other = new_sweep("damaged", small_config(), tmp_path / "damaged", managed=True)
        await journal.create(other, Lease("me", 30))
        await journal.append("damaged", "me", [Fact("told", "{}")], after=0)
        await journal.give_back("damaged", "me")
    async with daemon(where, tmp_path) as run:
        broken = await run.until("broken", "failed")
        assert "its configuration cannot be read" in (broken.reason or "")
        damaged = await run.until("damaged", "failed")
        assert "fact 1" in (damaged.reason or "")
        await run.until(await run.submit(), "completed")


async def test_a_journal_that_is_full_is_not_tried_all_the_time(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = 0

    async def full(*_: object, **__: object) -> None:
        nonlocal tried
        tried += 1
        raise StorageFullError("no room")

    async with daemon(where, tmp_path) as run:
        monkeypatch.setattr("spica_async.service.jobs.take", full)
        sweep_id = await run.submit()
        await asyncio.sleep(1.0)
        assert tried == 1
        assert (await run.manager.sweep(sweep_id)).state == "queued"


async def test_what_another_has_cancelled_is_not_begun(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one daemon is about to begin while the other takes the sweep away."""
    async with daemon(where, tmp_path, parallel_sweeps=1) as one:
        going = asyncio.Event()
        arrived = asyncio.Event()

        async def wait(self: SweepRunner, config: SmartSearchConfig) -> Inputs:
            arrived.set()
            await going.wait()
            return quick_inputs(config, lambda _: None)

        sweep = new_sweep("taken", small_config(), tmp_path / "taken", managed=True)
        with monkeypatch.context() as patch:
            patch.setattr(SweepRunner, "inputs", wait)
            async with SqlJournal.open(where) as journal:
                await journal.create(sweep)
                await arrived.wait()
                other = SweepManager(journal, MemoryBus(), NoCache(), ManagerSettings(tmp_path))
                await other.cancel("taken")
            going.set()
            await asyncio.sleep(0.5)
        assert (await one.manager.sweep("taken")).state == "cancelled"
        assert not one.worker.requests


async def test_what_a_dead_command_ran_can_be_had(where: Path, tmp_path: Path) -> None:
    async with SqlJournal.open(where) as journal:
        for name, lease in (("left", 0.01), ("mine", 0.01), ("alive", 1000.0)):
            command = new_sweep(name, small_config(), tmp_path / name)
            await journal.create(command, Lease("elsewhere:1#x", lease))
    async with daemon(where, tmp_path) as run:
        with pytest.raises(WrongStateError, match="is run by elsewhere"):
            await run.manager.cancel("alive")
        assert (await run.manager.cancel("left")).state == "cancelled"
        await run.manager.resume("mine")
        assert (await run.until("mine", "completed")).tally.feasible == BUDGET


async def test_a_crash_that_nobody_can_mend_leaves_the_events_whole(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with daemon(where, tmp_path, worker=gated(asyncio.Semaphore(7))) as run:
        sweep_id = await begun(run)
        while len(await kinds_of(where, sweep_id)) < 8:  # noqa: ASYNC110  # told by nobody
            await asyncio.sleep(0.01)
        crashed = tmp_path / "crashed.sqlite3"
        with sqlite3.connect(where) as source, sqlite3.connect(crashed) as target:
            source.backup(target)
    with sqlite3.connect(crashed) as changed:
        changed.execute("UPDATE sweeps SET owner = NULL, lease_until = NULL")

    def gone(config: SmartSearchConfig, note: object) -> Inputs:
        raise InputError("workload.trace_path: it is gone")

    with monkeypatch.context() as patch:
        patch.setattr("spica_async.service.runner.inputs_of", gone)
        async with daemon(crashed, tmp_path) as run:
            await run.until(sweep_id, "failed")
            assert (await kinds_of(crashed, sweep_id))[-1] == "sweep.failed"
    async with daemon(crashed, tmp_path) as run:
        await run.manager.resume(sweep_id)
        detail = await run.until(sweep_id, "completed")
    kinds = await kinds_of(crashed, sweep_id)
    assert kinds.count("sweep.failed") == 1
    assert kinds.count("candidate.measured") == detail.tally.feasible + detail.tally.failed
    assert kinds[-1] == "sweep.finished"


class PlanningForEver(Inputs):
    async def plan(self, progress: Progress) -> SweepPlan:
        await asyncio.Event().wait()
        raise AssertionError


def plan_for_ever(config: SmartSearchConfig, note: object) -> Inputs:
    return PlanningForEver(config, None, 1)


class DeafBus(MemoryBus):
    """Takes no requests for as long as it is told."""

    is_away = True

    async def publish(self, queue: str, message: Message) -> None:
        if self.is_away and queue.startswith("spica.requests"):
            raise BusUnavailableError("no answer for 600 s")
        await super().publish(queue, message)


async def test_what_is_asked_while_another_daemon_winds_down_counts(
    where: Path, tmp_path: Path
) -> None:
    """Its status, queued, is no answer to who wanted it cancelled."""
    async with SqlJournal.open(where) as journal:
        other = SweepManager(journal, MemoryBus(), NoCache(), ManagerSettings(tmp_path))
        worker = gated(asyncio.Semaphore(3))
        async with daemon(where, tmp_path, worker=worker, grace_seconds=2) as run:
            sweep_id = await begun(run)
            run.stop.set()
            await asyncio.sleep(0.2)
            await other.cancel(sweep_id)
    assert await status_of(where, sweep_id) == "cancelled"
    assert (await kinds_of(where, sweep_id))[-1] == "sweep.cancelled"


async def test_a_wish_that_came_too_late_is_granted_by_the_next(
    where: Path, tmp_path: Path
) -> None:
    async with SqlJournal.open(where) as journal:
        for name, status in (("again", "queued"), ("rests", "paused"), ("broke", "failed")):
            sweep = new_sweep(name, small_config(), tmp_path / name, managed=True)
            await journal.create(sweep, Lease("elsewhere:1#x", 30))
            await journal.request(name, "cancel")
            changes = StatusUpdate(status=status)
            await journal.append(name, "elsewhere:1#x", [], after=0, changes=changes)
            await journal.give_back(name, "elsewhere:1#x")
    async with daemon(where, tmp_path) as run:
        for name in ("again", "rests", "broke"):
            await run.until(name, "cancelled")
        assert not run.worker.requests
    assert await kinds_of(where, "rests") == ["sweep.submitted", "sweep.cancelled"]


@pytest.mark.parametrize(("verb", "state"), [("cancel", "cancelled"), ("resume", "completed")])
async def test_what_somebody_is_about_to_let_go_of_is_waited_for(
    where: Path, tmp_path: Path, verb: str, state: str
) -> None:
    async with SqlJournal.open(where) as journal:
        sweep = new_sweep("rests", small_config(), tmp_path / "rests", managed=True)
        await journal.create(sweep, Lease("elsewhere:1#x", 1.0))
        await journal.append(
            "rests", "elsewhere:1#x", [], after=0, changes=StatusUpdate(status="paused")
        )
    async with daemon(where, tmp_path) as run:
        await getattr(run.manager, verb)("rests")
        await run.until("rests", state)


async def test_who_keeps_it_is_named(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spica_async.service.manager._LEASE_PATIENCE_SECONDS", 0.1)
    async with SqlJournal.open(where) as journal:
        sweep = new_sweep("rests", small_config(), tmp_path / "rests", managed=True)
        await journal.create(sweep, Lease("elsewhere:1#x", 1000.0))
        await journal.append(
            "rests", "elsewhere:1#x", [], after=0, changes=StatusUpdate(status="paused")
        )
    async with daemon(where, tmp_path) as run:
        for ask in (run.manager.cancel, run.manager.resume, run.manager.remove):
            with pytest.raises(WrongStateError, match="elsewhere:1#x has it"):
                await ask("rests")


async def test_a_sweep_outlasts_a_broker_that_is_away(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spica_async.service.runner._FIRST_POSTPONEMENT_SECONDS", 0.2)
    bus = DeafBus()
    async with daemon(where, tmp_path, bus=bus) as run:
        sweep_id = await run.submit()
        async with asyncio.timeout(30):
            while await starts(where, sweep_id) < 2:  # noqa: ASYNC110  # told by nobody
                await asyncio.sleep(0.02)
        bus.is_away = False
        detail = await run.until(sweep_id, "completed", "failed")
    assert detail.tally.feasible == BUDGET
    kinds = await kinds_of(where, sweep_id)
    assert not {"sweep.failed", "sweep.paused"} & set(kinds)


async def test_nothing_is_begun_while_the_broker_is_away(where: Path, tmp_path: Path) -> None:
    async with daemon(where, tmp_path) as run:
        assert await run.manager.troubles() == []
        run.manager.runner.on_bus(BusState.CONNECTING, "refused")
        assert await run.manager.troubles() == ["the broker is away"]
        sweep_id = await run.submit()
        other = await run.submit()
        await asyncio.sleep(0.5)
        assert (await run.manager.sweep(sweep_id)).state == "queued"
        assert (await run.manager.cancel(other)).state == "cancelled"
        run.manager.runner.on_bus(BusState.CONNECTED, "")
        await run.until(sweep_id, "completed")


@pytest.mark.parametrize("verb", ["pause", "cancel"])
async def test_a_plan_is_not_waited_for_to_let_a_sweep_rest(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    async with daemon(where, tmp_path) as run:
        monkeypatch.setattr("spica_async.service.runner.inputs_of", plan_for_ever)
        sweep_id = await run.submit()
        while not run.manager.runs(sweep_id):  # noqa: ASYNC110  # told by nobody
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await getattr(run.manager, verb)(sweep_id)
        async with asyncio.timeout(5):
            await run.until(sweep_id, "paused", "cancelled")
        monkeypatch.setattr("spica_async.service.runner.inputs_of", quick_inputs)
        await run.manager.resume(sweep_id)
        await run.until(sweep_id, "completed")


async def test_a_plan_is_not_waited_for_by_a_daemon_that_ends(
    where: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with asyncio.timeout(10), daemon(where, tmp_path) as run:
        monkeypatch.setattr("spica_async.service.runner.inputs_of", plan_for_ever)
        sweep_id = await run.submit()
        while not run.manager.runs(sweep_id):  # noqa: ASYNC110  # told by nobody
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
    assert await status_of(where, sweep_id) == "queued"
    assert await kinds_of(where, sweep_id) == ["sweep.submitted"]


async def test_what_a_command_has_taken_is_the_commands(where: Path, tmp_path: Path) -> None:
    async with daemon(where, tmp_path) as run, SqlJournal.open(where) as journal:
        run.manager.runner.on_bus(BusState.CONNECTING, "so that it is not begun")
        sweep_id = await run.submit()
        inputs = quick_inputs(small_config(), lambda _: None)
        job = ResumedJob(
            sweep_id, inputs, folder=tmp_path / sweep_id, journal=lambda: nullcontext(journal)
        )
        async with AsyncExitStack() as stack:
            await job.before_planning(stack)
            owner = (await journal.sweep(sweep_id)).owner
            assert owner is not None
            news = StatusUpdate(status="running")
            await journal.append(sweep_id, owner, [], after=0, changes=news)
            for ask in (run.manager.pause, run.manager.cancel):
                with pytest.raises(WrongStateError, match="no daemon"):
                    await ask(sweep_id)
        assert (await run.manager.cancel(sweep_id)).state == "cancelled"


async def test_no_more_are_taken_at_once_than_may_wait(where: Path, tmp_path: Path) -> None:
    async with daemon(where, tmp_path, max_queued=2) as run:
        run.manager.runner.on_bus(BusState.CONNECTING, "so that none is begun")
        taken = await asyncio.gather(*(run.submit() for _ in range(10)), return_exceptions=True)
        refused = [one for one in taken if isinstance(one, QueueFullError)]
        ids = [one for one in taken if isinstance(one, str)]
        assert (len(ids), len(refused)) == (2, 8)
        await run.manager.pause(ids[0])
        await run.submit()
        with pytest.raises(QueueFullError):
            await run.manager.resume(ids[0])


async def test_a_key_names_one_submission(where: Path, tmp_path: Path) -> None:
    async with daemon(where, tmp_path) as run:
        first, *again = [
            await run.manager.submit(small_config(), priority=0, use_cache=False, token="one")
            for _ in range(3)
        ]
        assert {one.sweep_id for one in again} == {first.sweep_id}
        with pytest.raises(InputError, match=f"another one: sweep {first.sweep_id}"):
            await run.manager.submit(small_config(), priority=1, use_cache=False, token="one")
        assert len(await run.listed()) == 1


async def test_what_is_removed_is_forgotten_and_its_folder_is_not(
    where: Path, tmp_path: Path
) -> None:
    gate = asyncio.Semaphore(0)
    async with daemon(where, tmp_path, worker=gated(gate)) as run:
        sweep_id = await begun(run)
        with pytest.raises(WrongStateError, match="cancel it first"):
            await run.manager.remove(sweep_id)
        await run.manager.cancel(sweep_id)
        await run.until(sweep_id, "cancelled")
        await run.manager.remove(sweep_id)
        with pytest.raises(SweepUnknownError):
            await run.manager.sweep(sweep_id)
        assert await run.listed() == []
        for _ in range(1000):
            gate.release()
        await run.until(await run.submit(), "completed")
    assert (tmp_path / sweep_id / "candidates.jsonl").exists()


async def test_a_stream_ends_with_a_sweep_that_is_retired(where: Path, tmp_path: Path) -> None:
    async with daemon(where, tmp_path) as run, asyncio.timeout(30):
        run.manager.runner.is_ending = True  # So that none is begun.
        sweep_id, other = await run.submit(), await run.submit()
        stream, of_all = run.events(sweep_id), run.events(None)
        assert (await anext(stream)).sequence == 1
        hearing = asyncio.ensure_future(anext(of_all))
        async with SqlJournal.open(where) as journal:
            assert await journal.remove(sweep_id)
        with pytest.raises(SweepUnknownError):
            await anext(stream)
        # That of all goes on, whatever is gone.
        await run.manager.cancel(other)
        assert (await hearing).data.kind == "sweep.cancelled"


async def test_one_that_takes_its_daemon_down_is_left_alone(where: Path, tmp_path: Path) -> None:
    facts = [
        Fact("started", Started(at=0, run=run, owner="x", bus="memory").model_dump_json())
        for run in range(1, 11)
    ]
    async with SqlJournal.open(where) as journal:
        sweep = new_sweep("deadly", small_config(), tmp_path / "deadly", managed=True)
        await journal.create(sweep, Lease("me", 30))
        await journal.append("deadly", "me", facts, after=0)
        await journal.give_back("deadly", "me")
    async with daemon(where, tmp_path) as run:
        detail = await run.until("deadly", "failed")
    assert "has died 10 times in a row" in (detail.reason or "")


async def test_a_running_sweep_is_shown_as_it_is(where: Path, tmp_path: Path) -> None:
    gate = asyncio.Semaphore(6)
    async with daemon(where, tmp_path, worker=gated(gate)) as run:
        sweep_id = await begun(run)
        await run.manager.pause(sweep_id)
        paused = await run.until(sweep_id, "paused")
        (listed,) = await run.listed()
        assert listed.reason == paused.reason == "it was stopped"
        await run.manager.resume(sweep_id)
        while not (detail := await run.until(sweep_id, "running")).branches:  # noqa: ASYNC110  # as a client does
            await asyncio.sleep(0.01)
        assert detail.reason is None
        assert detail.elapsed_seconds > 0


async def test_a_daemon_that_is_cancelled_leaves_no_task_behind(
    where: Path, tmp_path: Path
) -> None:
    async with SqlJournal.open(where) as journal:
        manager = SweepManager(journal, MemoryBus(), NoCache(), ManagerSettings(output=tmp_path))
        running = asyncio.create_task(manager.run(asyncio.Event()))
        await asyncio.sleep(0.1)  # Until it waits for something to do.
        running.cancel()
        await asyncio.wait({running})
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
