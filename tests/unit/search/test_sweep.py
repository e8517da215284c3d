"""A whole sweep into a folder, whatever ends it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.inline import Inline
from support.lossy import Fault, LossyWorker
from support.searching import FakeSampler, FakeWorker, Ledger, NoLog, succeed, sweep_of
from support.virtual_time import run_in_virtual_time

from schemas.config import OptimizerSettings, SmartSearchConfig
from schemas.events import WorkerHeartbeat, WorkerStatus
from schemas.results import CandidateRecord, SweepResult
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import (
    AccessRefusedError,
    BusError,
    BusUnavailableError,
    Message,
    QueueSpec,
)
from spica_async.bus.topology import WORKER_HEARTBEAT_TOPIC, declare, requests_queue
from spica_async.errors import SpicaError
from spica_async.optimizer.types import Study
from spica_async.plan.types import SweepPlan
from spica_async.report import folder_writer
from spica_async.report.folder_writer import FolderWriter
from spica_async.search.branches import Branches
from spica_async.search.observer import Observers
from spica_async.search.stopping import SweepStop
from spica_async.search.sweep_run import SweepRun

SAMPLES = 6
MakeRun = Callable[..., SweepRun]


@pytest.fixture
async def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FolderWriter]:
    # Some of these sweeps are run in virtual time, for which no thread waits.
    monkeypatch.setattr(folder_writer, "DaemonThreads", Inline)
    async with FolderWriter.open(tmp_path / "results", "sweep") as folder:
        yield folder


@pytest.fixture
def make_sweep(
    folder: FolderWriter,
    make_config: Callable[..., SmartSearchConfig],
    make_sweep_plan: Callable[..., SweepPlan],
) -> MakeRun:
    """A run of a sweep of six samples that are listed rather than searched, two at a time."""
    config = make_config({"agg_max_num_seqs": [256, 512, 1024]}, sweep={"parallel_evals": 2})
    plan = make_sweep_plan(config)
    assert [branch.distinct_selections for branch in plan.branches] == [SAMPLES]

    def make(
        ledger: Ledger | None = None,
        *,
        stop: SweepStop | None = None,
        max_seconds: float | None = None,
        **changes: Any,
    ) -> SweepRun:
        limits = config.sweep.model_copy(update={"max_seconds": max_seconds})
        limited = config.model_copy(update={"sweep": limits})
        changes.setdefault("plan", replace(plan, config=limited))
        sweep = sweep_of(
            folder=folder.path, versions={"engine": "1"}, planning_seconds=0.5, **changes
        )
        observers = Observers(folder, ledger or Ledger())
        return SweepRun(sweep, NoLog(), observers, stop=stop or SweepStop())

    return make


@asynccontextmanager
async def worked_bus(
    bus: MemoryBus | None = None, *, gate: asyncio.Semaphore | None = None
) -> AsyncIterator[MemoryBus]:
    bus = bus or MemoryBus()
    await declare(bus, requests_queue("engine"))
    async with FakeWorker(bus, gate=gate).running():
        yield bus


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_kept(folder: FolderWriter, candidates: int, status: str) -> None:
    """The ranking holds each candidate that was found, best first."""
    records = lines(folder.path / "candidates.jsonl")
    ranking = json.loads((folder.path / "ranking.json").read_text())
    summary = json.loads((folder.path / "summary.json").read_text())
    assert len(records) == candidates
    by_score = sorted(records, key=lambda record: record["score"], reverse=True)
    assert [one["candidate_id"] for one in ranking] == [one["candidate_id"] for one in by_score]
    assert summary["status"] == status
    assert summary["timings"]["planning"] == 0.5


async def test_a_sweep_that_ends_by_itself_is_no_interrupted_one(
    make_sweep: MakeRun, folder: FolderWriter
) -> None:
    async with worked_bus() as bus:
        result = await make_sweep().run(bus)
    assert result.status == "exhausted"
    assert_kept(folder, SAMPLES, "exhausted")


async def test_what_was_found_is_kept_when_the_search_raises(
    make_sweep: MakeRun, folder: FolderWriter
) -> None:
    ledger = Ledger()

    def fail(_: CandidateRecord) -> None:
        if len(ledger.records) == 3:
            raise LookupError("the screen is gone")

    ledger.on_record = fail
    async with worked_bus() as bus:
        with pytest.raises(ExceptionGroup) as caught:
            await make_sweep(ledger).run(bus)
    assert caught.group_contains(LookupError, match="the screen is gone")
    assert_kept(folder, 3, "interrupted")


async def test_what_was_found_is_kept_when_the_task_is_cancelled(
    make_sweep: MakeRun, folder: FolderWriter
) -> None:
    ledger = Ledger()
    async with worked_bus() as bus:
        running = asyncio.ensure_future(make_sweep(ledger).run(bus))

        def cancel(_: CandidateRecord) -> None:
            if len(ledger.records) == 3:
                running.cancel()

        ledger.on_record = cancel
        with pytest.raises(asyncio.CancelledError):
            await running
    assert running.cancelled()
    assert_kept(folder, 3, "interrupted")


async def test_what_is_in_flight_suits_the_workers_that_announce_themselves(
    make_sweep: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Semaphore(0)
    announced: list[int] = []

    def suit(_: Branches, slots: int) -> None:
        announced.append(slots)
        if slots == 3:
            for _number in range(SAMPLES):
                gate.release()

    monkeypatch.setattr(Branches, "suit", suit)
    status = WorkerStatus(
        worker="one",
        host="here",
        pid=1,
        engine_fingerprint="engine",
        state="ready",
        slots=3,
        interval_seconds=10,
    )
    event = WorkerHeartbeat(source="one", data=status)
    async with worked_bus(gate=gate) as bus:
        running = asyncio.ensure_future(make_sweep().run(bus))
        await asyncio.sleep(0)
        await bus.publish_event(WORKER_HEARTBEAT_TOPIC, Message.of(event))
        async with asyncio.timeout(30):
            result = await running
    assert result.status == "exhausted"
    assert 3 in announced


async def test_a_stop_gives_what_was_found(make_sweep: MakeRun, folder: FolderWriter) -> None:
    stop = SweepStop()
    ledger = Ledger()

    def ask_to_stop(_: CandidateRecord) -> None:
        if len(ledger.records) == 3:
            stop.request()

    ledger.on_record = ask_to_stop
    async with worked_bus() as bus:
        result = await make_sweep(ledger, stop=stop).run(bus)
    assert result.status == "interrupted"
    assert_kept(folder, len(result.ranking), "interrupted")
    assert 3 <= len(result.ranking) < SAMPLES


class Slowing:
    """A worker's gate that lets three evaluations through and each further one when asked to."""

    def __init__(self) -> None:
        self.gate = asyncio.Semaphore(3)
        self.stop = SweepStop(grace_seconds=10.0)
        self.ledger = Ledger(on_record=self.stop_at_the_third)

    def stop_at_the_third(self, _: CandidateRecord) -> None:
        if len(self.ledger.records) == 3:
            asyncio.get_running_loop().call_later(1.0, self.stop.request)


def test_what_runs_at_a_stop_may_end_within_the_grace(
    make_sweep: MakeRun, folder: FolderWriter
) -> None:
    async def main() -> SweepResult:
        slowing = Slowing()
        sweep = make_sweep(slowing.ledger, stop=slowing.stop)
        async with worked_bus(gate=slowing.gate) as bus:
            asyncio.get_running_loop().call_later(5.0, slowing.gate.release)
            result = await sweep.run(bus)
        assert asyncio.get_running_loop().time() == 5.0
        return result

    result = run_in_virtual_time(main())
    assert result.status == "interrupted"
    assert_kept(folder, 4, "interrupted")


def test_what_does_not_end_within_the_grace_is_given_up(
    make_sweep: MakeRun, folder: FolderWriter
) -> None:
    async def main() -> None:
        slowing = Slowing()
        sweep = make_sweep(slowing.ledger, stop=slowing.stop)
        async with worked_bus(gate=slowing.gate) as bus:
            await sweep.run(bus)
        assert asyncio.get_running_loop().time() == 11.0

    run_in_virtual_time(main())
    assert_kept(folder, 3, "interrupted")


def test_a_stop_when_nothing_runs_needs_no_grace(make_sweep: MakeRun, folder: FolderWriter) -> None:
    async def main() -> None:
        stop = SweepStop()
        asyncio.get_running_loop().call_later(100.0, stop.request)
        await make_sweep(stop=stop).run(MemoryBus())
        assert asyncio.get_running_loop().time() == 100.0

    run_in_virtual_time(main())
    assert_kept(folder, 0, "interrupted")


def test_a_second_interrupt_does_not_wait_for_the_grace(
    make_sweep: MakeRun, folder: FolderWriter
) -> None:
    async def main() -> None:
        slowing = Slowing()
        sweep = make_sweep(slowing.ledger, stop=slowing.stop)
        async with worked_bus(gate=slowing.gate) as bus:
            running = asyncio.ensure_future(sweep.run(bus))
            asyncio.get_running_loop().call_later(3.0, running.cancel)
            with pytest.raises(asyncio.CancelledError):
                await running
        assert asyncio.get_running_loop().time() == 3.0

    run_in_virtual_time(main())
    assert_kept(folder, 3, "interrupted")


def test_a_sweep_that_ends_within_the_grace_has_ended_by_itself(
    make_sweep: MakeRun, folder: FolderWriter
) -> None:
    async def main() -> SweepResult:
        gate, stop, ledger = asyncio.Semaphore(SAMPLES - 1), SweepStop(grace_seconds=10.0), Ledger()
        loop = asyncio.get_running_loop()
        async with worked_bus(gate=gate) as bus:
            loop.call_later(1.0, stop.request)
            loop.call_later(2.0, gate.release)
            return await make_sweep(ledger, stop=stop).run(bus)

    assert run_in_virtual_time(main()).status == "exhausted"
    assert_kept(folder, SAMPLES, "exhausted")


class BreakingBus(MemoryBus):
    """Takes so many requests, and then nothing."""

    def __init__(self, requests: int, error: BusError) -> None:
        super().__init__()
        self._left = requests
        self._error = error

    async def publish(self, queue: str, message: Message) -> None:
        if queue == requests_queue("engine").name:
            self._left -= 1
            if self._left < 0:
                raise self._error
        await super().publish(queue, message)


@pytest.mark.parametrize(
    "error",
    [
        BusUnavailableError("the broker did not answer for 600 s"),
        AccessRefusedError("the broker refuses to take messages of this user"),
    ],
)
async def test_a_failing_bus_ends_the_sweep_with_one_error_and_what_was_found(
    make_sweep: MakeRun, folder: FolderWriter, error: BusError
) -> None:
    async with worked_bus(BreakingBus(4, error)) as bus:
        with pytest.raises(SpicaError) as caught:
            await make_sweep().run(bus)
    assert str(caught.value) == f"{error}; what was found, if anything, is in {folder.path}"
    found = len(lines(folder.path / "candidates.jsonl"))
    assert found >= 3
    assert_kept(folder, found, "interrupted")


async def test_a_queue_of_somebody_else_ends_the_sweep_with_one_error(
    make_sweep: MakeRun,
) -> None:
    bus = MemoryBus()
    await bus.declare_queue(QueueSpec(requests_queue("engine").name))
    with pytest.raises(SpicaError, match="other arguments than ours"):
        await make_sweep().run(bus)


def test_requests_that_were_sent_again_and_late_results_are_in_the_summary(
    make_sweep: MakeRun, folder: FolderWriter
) -> None:
    faults = [Fault.SWALLOWED, Fault.TWICE, Fault.SWALLOWED]

    async def main() -> SweepResult:
        bus = MemoryBus()
        await declare(bus, requests_queue("engine"))
        async with LossyWorker(bus, "w", iter(faults), succeed).running():
            return await make_sweep().run(bus)

    with capture_logs():
        tally = run_in_virtual_time(main()).tally
    assert (tally.feasible, tally.resent_requests, tally.late_results) == (SAMPLES, 2, 1)
    summary = json.loads((folder.path / "summary.json").read_text())
    assert summary["tally"]["resent_requests"] == 2


def test_the_display_hears_of_the_workers(make_sweep: MakeRun) -> None:
    ledger = Ledger()

    async def main() -> None:
        bus = MemoryBus()
        await declare(bus, requests_queue("engine"))
        async with LossyWorker(bus, "w", iter([]), succeed).running():
            await make_sweep(ledger).run(bus)

    run_in_virtual_time(main())
    assert [worker.name for worker in ledger.fleets[-1].workers] == ["w-0"]


@pytest.mark.parametrize("grace_seconds", [0.0, 10.0])
def test_what_runs_when_the_time_is_up_gets_the_grace(
    make_sweep: MakeRun, folder: FolderWriter, grace_seconds: float
) -> None:
    async def run() -> SweepResult:
        gate = asyncio.Semaphore(3)
        async with worked_bus(gate=gate) as bus:
            asyncio.get_running_loop().call_later(5.0, gate.release)
            stop = SweepStop(grace_seconds=grace_seconds)
            sweep = make_sweep(stop=stop, max_seconds=2.0)
            return await sweep.run(bus, spent_seconds=0.5)

    result = run_in_virtual_time(run())
    assert result.status == "time_limit"
    assert_kept(folder, 4 if grace_seconds else 3, "time_limit")


def test_a_sweep_ends_when_its_time_is_up(make_sweep: MakeRun, folder: FolderWriter) -> None:
    async def run() -> SweepResult:
        # Half a second went to the plan; three candidates are through when the rest is up.
        async with worked_bus(gate=asyncio.Semaphore(3)) as bus:
            return await make_sweep(max_seconds=2.0).run(bus, spent_seconds=0.5)

    result = run_in_virtual_time(run())
    assert result.status == "time_limit"
    assert result.reason == "max_seconds, 2, were up"
    assert [(b.end, b.reason) for b in result.branches] == [("time_limit", "max_seconds were up")]
    assert result.timings.total == pytest.approx(2.0)
    found = [record["found_seconds"] for record in lines(folder.path / "candidates.jsonl")]
    assert found == [0.5, 0.5, 0.5]
    assert_kept(folder, 3, "time_limit")


def test_time_that_was_up_before_anything_was_measured_is_no_verdict_on_the_space(
    make_sweep: MakeRun, folder: FolderWriter
) -> None:
    result = run_in_virtual_time(make_sweep(max_seconds=2.0).run(MemoryBus()))
    assert result.status == "time_limit"
    assert_kept(folder, 0, "time_limit")


@pytest.mark.parametrize(("profile", "near"), [("fast", True), ("random", False)])
async def test_a_study_starts_with_the_plans_seeds(
    *,
    make_sweep: MakeRun,
    make_config: Callable[..., SmartSearchConfig],
    make_sweep_plan: Callable[..., SweepPlan],
    monkeypatch: pytest.MonkeyPatch,
    profile: str,
    near: bool,
) -> None:
    samplers: list[FakeSampler] = []

    @asynccontextmanager
    async def open_sampler(
        study: Study, settings: OptimizerSettings, **_: Any
    ) -> AsyncIterator[Any]:
        assert settings.profile == profile
        assert study.parameters == plan.branches[0].parameters
        samplers.append(FakeSampler(plan.branches[0]))
        yield samplers[-1]

    monkeypatch.setattr("spica_async.search.sweep.open_sampler", open_sampler)
    config = make_config(
        {"gpu_budget": 8, "agg_max_num_seqs": [256, 512, 1024]},
        sweep={"max_rounds": 1, "candidates_per_round": 4, "optimizer": {"profile": profile}},
    )
    plan = make_sweep_plan(config, sizes=(1, 2))
    seeds = tuple(plan.branches[0].selection(index) for index in (2, 5))
    ledger = Ledger()
    run = make_sweep(ledger, plan=replace(plan, seeds={"agg": seeds}))
    async with worked_bus() as bus:
        await run.run(bus)
    sources = [r.source for r in sorted(ledger.records, key=lambda record: record.number)]
    assert sources[:3] == ["optimizer", "warm_start", "warm_start"]
    async with run.sweep.open_proposer(plan.branches[0]) as proposer:
        (first,) = await proposer.propose(1)
        assert bool(await proposer.instead_of([first], lambda _: True)) is near
