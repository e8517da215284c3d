"""Whole searches over a bus, with a worker and samplers whose answers are known."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from schemas.events import EvaluationStart, EvaluationStarted
from schemas.journal import SamplerStats, SweepFact
from schemas.messages import (
    EvaluationCompleted,
    EvaluationRequest,
    EvaluationRequested,
    EvaluationResult,
    Measurement,
    Sample,
)
from schemas.results import CandidateRecord
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Bus, Delivery, Message, UnroutableError
from spica_async.bus.topology import EVALUATION_STARTED_TOPIC, requests_queue
from spica_async.evaluate.fleet import Fleet, FleetView
from spica_async.evaluate.in_flight import Evaluations
from spica_async.optimizer.proposals import EnumeratedProposer, Proposer, StudyProposer
from spica_async.optimizer.types import Suggestion, Trial
from spica_async.plan.types import SweepPlan
from spica_async.search.branch import Branch
from spica_async.search.branch_driver import SearchContext
from spica_async.search.branches import Branches, ProposerFactory
from spica_async.search.fact_log import ResultT
from spica_async.search.observer import Observer
from spica_async.search.sweep import Sweep
from spica_async.space.branch import BranchSpace
from spica_async.space.parameters import Assignment, FloatParameter

Measure = Callable[[Sample], Measurement]
SEARCHED = {
    "gpu_budget": 8,
    "agg_max_num_batched_tokens": [8192, 16384, 32768],
    "agg_max_num_seqs": [256, 512, 1024],
    "prefill_max_num_seqs": [1, 2, 4],
}


def throughput_of(sample: Sample) -> float:
    """Some number that differs from sample to sample."""
    return float(random.Random(json.dumps(sample, sort_keys=True)).randrange(1000))


def succeed(sample: Sample) -> Measurement:
    report = {"output_throughput_tok_s": throughput_of(sample)}
    return Measurement(outcome="feasible", report=report, build_seconds=0.25, replay_seconds=0.5)


def succeed_or_fail(sample: Sample) -> Measurement:
    if throughput_of(sample) < 250:
        return Measurement(outcome="failed", cause="replay_error", detail="it broke")
    return succeed(sample)


class RunsWhileOpen(Protocol):
    """Some worker."""

    def running(self) -> AbstractAsyncContextManager[None]: ...


@dataclass
class FakeWorker:
    """Answers requests from `slots` tasks, each in its own time."""

    bus: Bus
    measure: Measure = succeed
    slots: int = 1
    requests: list[EvaluationRequest] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    gate: asyncio.Semaphore | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        queue = requests_queue("engine").name
        async with asyncio.TaskGroup() as group, self.bus.consume(queue, prefetch=100) as consumer:

            async def slot(pace: random.Random) -> None:
                async for delivery in consumer:
                    await self._answer(delivery, pace)

            tasks = [group.create_task(slot(random.Random(n))) for n in range(self.slots)]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def _answer(self, delivery: Delivery, pace: random.Random) -> None:
        self.bodies.append(delivery.message.body)
        request = EvaluationRequested.model_validate_json(delivery.message.body).data
        self.requests.append(request)
        await self._publish_start(request)
        if self.gate is not None:
            await self.gate.acquire()
        for _ in range(pace.randrange(12)):
            await asyncio.sleep(0)
        result = EvaluationResult(
            evaluation_id=request.evaluation_id,
            sweep_id=request.sweep_id,
            worker="fake",
            measurement=self.measure(request.sample),
            model_sha256=None if request.model is None else request.model.sha256,
            wall_seconds=1.0,
        )
        assert delivery.message.reply_to is not None
        message = Message.of(
            EvaluationCompleted(id=request.evaluation_id, source="fake", data=result)
        )
        with suppress(UnroutableError):  # The search has ended meanwhile, and its queue with it.
            await self.bus.publish(delivery.message.reply_to, message)
        await delivery.ack()

    async def _publish_start(self, request: EvaluationRequest) -> None:
        start = EvaluationStart(
            evaluation_id=request.evaluation_id, sweep_id=request.sweep_id, worker="fake", slot=0
        )
        event = EvaluationStarted(source="fake", data=start)
        await self.bus.publish_event(EVALUATION_STARTED_TOPIC, Message.of(event))


class NoLog:
    """Applies facts at once, and keeps none."""

    async def record(
        self,
        fact: SweepFact,
        apply: Callable[[], ResultT],
        *,
        status: str | None = None,
        verdict: Callable[[], CandidateRecord | None] | None = None,
    ) -> ResultT:
        return apply()

    async def settled(self) -> None:
        pass

    def note(self, fact: SweepFact) -> None:
        pass


@dataclass
class FakeSampler:
    """Proposes by chance and by all that it has observed, in that order."""

    space: BranchSpace
    stats: SamplerStats = field(default_factory=SamplerStats)
    history: list[Trial] = field(default_factory=list)
    asked: int = 0

    async def ask(self, count: int) -> list[Suggestion]:
        await asyncio.sleep(0)
        chance = random.Random(f"{self.asked} {self.history}")
        first, self.asked = self.asked, self.asked + count
        return [Suggestion(first + n, self._draw(chance)) for n in range(count)]

    async def place(self, assignments: Sequence[Assignment]) -> list[Suggestion]:
        first, self.asked = self.asked, self.asked + len(assignments)
        return [Suggestion(first + n, assignment) for n, assignment in enumerate(assignments)]

    async def restore(self, suggestions: Sequence[Suggestion], *, asked: bool) -> None:
        assert [one.number for one in suggestions][:1] == [self.asked]
        self.asked += len(suggestions)

    async def observe(self, trials: Sequence[Trial]) -> None:
        await asyncio.sleep(0)
        self.history += trials

    def _draw(self, chance: random.Random) -> Assignment:
        return {
            p.name: chance.uniform(p.low, p.high)
            if isinstance(p, FloatParameter)
            else chance.choice(p.values)
            for p in self.space.parameters
        }


@dataclass
class ScriptedSampler:
    """Proposes what is listed, then fails; `on_observe` runs while it observes."""

    script: list[Assignment]
    on_observe: Callable[[Sequence[Trial]], Any] | None = None
    stats: SamplerStats = field(default_factory=SamplerStats)
    history: list[Trial] = field(default_factory=list)
    asked: int = 0

    async def ask(self, count: int) -> list[Suggestion]:
        first, self.asked = self.asked, self.asked + count
        return [Suggestion(n, self.script[n]) for n in range(first, self.asked)]

    async def place(self, assignments: Sequence[Assignment]) -> list[Suggestion]:
        raise AssertionError("a script is all that is proposed")

    async def restore(self, suggestions: Sequence[Suggestion], *, asked: bool) -> None:
        self.asked += len(suggestions)

    async def observe(self, trials: Sequence[Trial]) -> None:
        if self.on_observe is not None:
            await self.on_observe(trials)
        self.history += trials


@dataclass
class Ledger(Observer):
    """An observer that keeps everything."""

    records: list[CandidateRecord] = field(default_factory=list)
    progress: list[tuple[str, int, int]] = field(default_factory=list)
    fleets: list[FleetView] = field(default_factory=list)
    on_record: Callable[[CandidateRecord], None] | None = None

    def evaluated(self, record: CandidateRecord) -> None:
        self.records.append(record)
        if self.on_record is not None:
            self.on_record(record)

    def progressed(self, branch: Branch) -> None:
        self.progress.append((branch.space.mode, branch.state.round, branch.state.attempts))

    def fleet(self, view: FleetView) -> None:
        self.fleets.append(view)


@dataclass
class Run:
    """A search that has ended, and all that took part in it."""

    search: Branches
    ledger: Ledger
    worker: FakeWorker
    samplers: dict[str, Any]

    @property
    def branch(self) -> Branch:
        return self.search.branches[0]

    @property
    def observed(self) -> dict[str, list[Trial]]:
        return {mode: sampler.history for mode, sampler in self.samplers.items()}


async def run_search(
    plan: SweepPlan,
    *,
    slots: int = 1,
    measure: Measure = succeed,
    make_sampler: Callable[[BranchSpace], Any] = FakeSampler,
    enumerate_points: bool = False,
    finds_neighbours: bool = False,
    make_workers: Callable[[MemoryBus], Sequence[RunsWhileOpen]] | None = None,
    started: Callable[[Run, asyncio.Task[None]], Any] | None = None,
) -> Run:
    bus = MemoryBus()
    ledger = Ledger()
    samplers: dict[str, Any] = {}

    @asynccontextmanager
    async def open_proposer(space: BranchSpace) -> AsyncIterator[Proposer]:
        if enumerate_points:
            yield EnumeratedProposer(space, seed=plan.config.sweep.random_seed)
            return
        samplers[space.mode] = make_sampler(space)
        yield StudyProposer(
            space,
            samplers[space.mode],
            seeds=plan.seeds.get(space.mode, ()),
            finds_neighbours=finds_neighbours,
        )

    async with Evaluations(
        bus,
        Fleet("engine"),
        coordinator="sweep",
        parallel=plan.config.sweep.parallel_evals,
    ).open() as evaluations:
        search = Branches(SearchContext(sweep_of(plan), NoLog(), lambda: 1.5), ledger)
        run = Run(search, ledger, FakeWorker(bus, measure, slots), samplers)
        workers = make_workers(bus) if make_workers else [run.worker]
        async with AsyncExitStack() as stack:
            for worker in workers:
                await stack.enter_async_context(worker.running())
            await _drive(run, open_proposer, evaluations, started)
    return run


def sweep_of(plan: SweepPlan, **changes: Any) -> Sweep:
    """A sweep of a plan; only its plan matters, unless there are changes."""
    known: dict[str, Any] = {
        "sweep_id": "sweep",
        "plan": plan,
        "trace": None,
        "folder": Path("sweep"),
        "versions": {},
        "fingerprint": "engine",
        "planning_seconds": 0.0,
    }
    return Sweep(**known | changes)


async def _drive(
    run: Run,
    open_proposer: ProposerFactory,
    evaluations: Evaluations,
    started: Callable[[Run, asyncio.Task[None]], Any] | None,
) -> None:
    task = asyncio.ensure_future(run.search.run(open_proposer, evaluations))
    if started is not None:
        started(run, task)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise


def seqs(*values: int) -> list[Assignment]:
    return [{"agg_max_num_seqs": value} for value in values]
