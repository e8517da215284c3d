"""Whole branches over a bus, with a worker whose measurements are known."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from schemas.config import SmartSearchConfig
from schemas.goal import OptimizationTarget
from schemas.messages import (
    EVALUATION_COMPLETED,
    EvaluationCompleted,
    EvaluationRequest,
    EvaluationRequested,
    EvaluationResult,
    Measurement,
    Sample,
)
from schemas.results import CandidateRecord
from spica_async.branch import Phase
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Delivery, Message
from spica_async.bus.topology import requests_queue
from spica_async.evaluations import Evaluations
from spica_async.plan.types import SweepPlan
from spica_async.proposals import EnumeratedProposer, Proposer, StudyProposer
from spica_async.sampling.port import SamplerStats
from spica_async.sampling.types import Suggestion, Trial
from spica_async.scoring import rank
from spica_async.search import BranchSearch, ProposerFactory, Search, enumerable_points
from spica_async.space.branch import BranchSpace
from spica_async.space.capacity import CapacityKey
from spica_async.space.parameters import Assignment, FloatParameter
from spica_async.space.shapes import ParallelShape

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


@dataclass
class FakeWorker:
    """Answers requests from `slots` tasks, each in its own time."""

    bus: MemoryBus
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
        if self.gate is not None:
            await self.gate.acquire()
        for _ in range(pace.randrange(12)):
            await asyncio.sleep(0)
        result = EvaluationResult(
            evaluation_id=request.evaluation_id,
            sweep_id=request.sweep_id,
            worker="fake",
            measurement=self.measure(request.sample),
            wall_seconds=1.0,
        )
        body = EvaluationCompleted(source="fake", data=result).model_dump_json().encode()
        assert delivery.message.reply_to is not None
        await self.bus.publish(
            delivery.message.reply_to, Message(body, request.evaluation_id, EVALUATION_COMPLETED)
        )
        await delivery.ack()


@dataclass
class FakeSampler:
    """Proposes by chance and by all that it was told, in the order in which it was told it."""

    space: BranchSpace
    stats: SamplerStats = field(default_factory=SamplerStats)
    history: list[Trial] = field(default_factory=list)
    asked: int = 0

    async def ask(self, count: int) -> list[Suggestion]:
        await asyncio.sleep(0)
        chance = random.Random(f"{self.asked} {self.history}")
        first, self.asked = self.asked, self.asked + count
        return [Suggestion(first + n, self._draw(chance)) for n in range(count)]

    async def tell(self, trials: Sequence[Trial]) -> None:
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
    """Proposes what is listed, then fails; `on_tell` runs while it is being told."""

    script: list[Assignment]
    on_tell: Callable[[Sequence[Trial]], Any] | None = None
    stats: SamplerStats = field(default_factory=SamplerStats)
    history: list[Trial] = field(default_factory=list)
    asked: int = 0

    async def ask(self, count: int) -> list[Suggestion]:
        first, self.asked = self.asked, self.asked + count
        return [Suggestion(n, self.script[n]) for n in range(first, self.asked)]

    async def tell(self, trials: Sequence[Trial]) -> None:
        if self.on_tell is not None:
            await self.on_tell(trials)
        self.history += trials


@dataclass
class Ledger:
    """An observer that keeps everything."""

    records: list[CandidateRecord] = field(default_factory=list)
    progress: list[tuple[str, int, int]] = field(default_factory=list)
    on_record: Callable[[CandidateRecord], None] | None = None

    def evaluated(self, record: CandidateRecord) -> None:
        self.records.append(record)
        if self.on_record is not None:
            self.on_record(record)

    def progressed(self, branch: BranchSearch) -> None:
        self.progress.append((branch.space.mode, branch.state.round, branch.state.attempts))


@dataclass
class Run:
    """A search that has ended, and all that took part in it."""

    search: Search
    ledger: Ledger
    worker: FakeWorker
    samplers: dict[str, Any]

    @property
    def branch(self) -> BranchSearch:
        return self.search.branches[0]

    @property
    def told(self) -> dict[str, list[Trial]]:
        return {mode: sampler.history for mode, sampler in self.samplers.items()}


async def run_search(
    plan: SweepPlan,
    *,
    slots: int = 1,
    measure: Measure = succeed,
    make_sampler: Callable[[BranchSpace], Any] = FakeSampler,
    enumerate_points: bool = False,
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
        yield StudyProposer(space, samplers[space.mode])

    async with Evaluations.open(
        bus,
        coordinator="sweep",
        fingerprint="engine",
        parallel=plan.config.sweep.parallel_evals,
    ) as evaluations:
        search = Search(
            sweep_id="sweep", plan=plan, trace=None, evaluations=evaluations, observer=ledger
        )
        run = Run(search, ledger, FakeWorker(bus, measure, slots), samplers)
        async with run.worker.running():
            await _drive(run, open_proposer, started)
    return run


async def _drive(
    run: Run,
    open_proposer: ProposerFactory,
    started: Callable[[Run, asyncio.Task[None]], Any] | None,
) -> None:
    task = asyncio.ensure_future(run.search.run(open_proposer))
    if started is not None:
        started(run, task)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise


@pytest.mark.parametrize("measure", [succeed, succeed_or_fail])
@pytest.mark.parametrize("modes", [["agg"], ["disagg", "agg"]], ids=str)
async def test_any_number_of_slots_gives_the_same_search(
    make_config: Callable[..., SmartSearchConfig],
    make_sweep_plan: Callable[..., SweepPlan],
    measure: Measure,
    modes: list[str],
) -> None:
    config = make_config(
        {**SEARCHED, "deployment_mode": modes},
        sweep={"max_rounds": 4, "candidates_per_round": 3, "parallel_evals": 4},
    )
    plan = make_sweep_plan(config, sizes=(1, 2, 4))
    one = await run_search(plan, slots=1, measure=measure)
    four = await run_search(plan, slots=4, measure=measure)
    assert one.told == four.told
    assert {len(history) for history in one.told.values()} != {0}
    assert rank(one.search.candidates) == rank(four.search.candidates)
    by_number = [
        sorted(
            (record.model_copy(update={"timings": None}) for record in run.ledger.records),
            key=lambda record: (record.branch, record.number),
        )
        for run in (one, four)
    ]
    assert by_number[0] == by_number[1]
    for branch in one.search.branches:
        assert branch.state.phase is Phase.COMPLETED
        numbers = [trial.number for trial in one.told[branch.space.mode]]
        assert sorted(numbers) == list(range(branch.state.attempts))


async def test_requests_in_flight_are_capped_over_all_branches(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> None:
    config = make_config(
        {**SEARCHED, "deployment_mode": ["disagg", "agg"]},
        sweep={"max_rounds": 3, "candidates_per_round": 4, "parallel_evals": 3},
    )
    most = 0

    def watch(run: Run, _: asyncio.Task[None]) -> None:
        def measure(sample: Sample) -> Measurement:
            nonlocal most
            flying = len(run.worker.requests) - len(run.ledger.records)
            most = max(most, flying)
            return succeed(sample)

        run.worker.measure = measure

    run = await run_search(make_sweep_plan(config, sizes=(1, 2)), slots=8, started=watch)
    assert most == 3
    assert [branch.state.tally["feasible"] for branch in run.search.branches] == [12, 12]


async def test_a_worker_sees_the_sample_the_load_and_the_sla_and_no_goal(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> None:
    config = make_config(
        goal={"target": "throughput", "sla": {"e2e_ms": 77.0}},
        sweep={"max_rounds": 1, "candidates_per_round": 1, "max_eval_seconds": 9.0},
    )
    run = await run_search(make_sweep_plan(config))
    (body,) = run.worker.bodies
    data = json.loads(body)["data"]
    assert set(data) == {
        *("evaluation_id", "sweep_id", "sample", "load", "sla", "max_eval_seconds"),
    }
    assert data["evaluation_id"] == "sweep-agg-0"
    assert data["sla"] == {"ttft_ms": None, "itl_ms": None, "e2e_ms": 77.0}
    assert data["max_eval_seconds"] == 9.0
    assert (data["load"]["concurrency"], data["load"]["requests"]) == (4, 8)
    for word in (b"goal", b'round"', b"score", b"objective", b"candidate", b"used_gpu_ratio"):
        assert word not in body
    # The same sample under another goal is the same request.
    other = config.model_copy(
        update={
            "goal": config.goal.model_copy(
                update={"target": OptimizationTarget.THROUGHPUT_PER_USER}
            )
        }
    )
    again = await run_search(
        make_sweep_plan(other),
        measure=lambda _: Measurement(
            outcome="feasible", report={"mean_output_token_throughput_per_user": 1.0}
        ),
    )
    assert again.worker.requests == run.worker.requests


async def test_a_record_tells_all_of_a_candidate(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> None:
    config = make_config(
        goal={"target": "throughput"}, sweep={"max_rounds": 1, "candidates_per_round": 1}
    )
    run = await run_search(make_sweep_plan(config))
    (record,) = run.ledger.records
    (candidate,) = run.search.candidates
    sample = run.worker.requests[0].sample
    score = throughput_of(sample)
    assert record.timings is not None
    assert record.model_dump(exclude={"timings", "projection"}) == {
        "candidate_id": "sweep-agg-0",
        "branch": "agg",
        "round": 1,
        "number": 0,
        "outcome": "feasible",
        "cause": None,
        "detail": None,
        "score": score,
        "objectives": {"throughput": score},
        "used_gpus": sample["used_gpus"],
        "config": sample,
        "metrics": {"output_throughput_tok_s": score},
        "facts": {
            "needs_wide_ep": False,
            "agg_kv_capacity_tokens": candidate.facts["agg_kv_capacity_tokens"],
        },
        "stand_in": None,
        "worker": "fake",
    }
    assert record.projection is not None
    assert set(record.projection) == {
        *("requested", "actual", "distance", "mode_projected", "config"),
    }
    timings = record.timings.model_dump()
    assert timings == {"waited": 0.0, "build": 0.25, "replay": 0.5, "wall": 1.0}
    assert run.branch.evaluation_seconds == 1.0
    assert run.ledger.progress[-1] == ("agg", 1, 1)
    assert (run.branch.max_rounds, run.branch.target) == (1, 1)


async def test_a_failure_is_told_as_one_and_its_record_says_why(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> None:
    config = make_config(SEARCHED, sweep={"max_rounds": 5, "candidates_per_round": 2})
    run = await run_search(
        make_sweep_plan(config),
        measure=lambda _: Measurement(outcome="failed", cause="time_limit", detail="after 5 s"),
    )
    assert run.branch.state.phase is Phase.FAILED
    assert [trial.metrics for trial in run.told["agg"]] == [None] * run.branch.state.attempts
    assert run.search.candidates == []
    for record in run.ledger.records:
        assert (record.outcome, record.cause, record.detail) == (
            "failed",
            "time_limit",
            "after 5 s",
        )
        assert (record.score, record.objectives, record.metrics) == (None, None, None)


async def test_a_sample_without_kv_room_is_never_sent(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> None:
    config = make_config(
        {"gpu_budget": 2, "agg_max_num_batched_tokens": [8192, 16384]},
        sweep={"max_rounds": 2, "candidates_per_round": 1},
    )
    plan = make_sweep_plan(config)
    full = CapacityKey("vllm", "agg", ParallelShape(2), 16384)
    assert full in plan.capacity
    plan = replace_capacity(plan, {**plan.capacity, full: 8192})
    run = await run_search(plan, enumerate_points=True)
    assert run.branch.state.phase is Phase.EXHAUSTED
    assert [r.sample["agg_max_num_batched_tokens"] for r in run.worker.requests] == [8192]
    (refused,) = [record for record in run.ledger.records if record.outcome == "infeasible"]
    assert (refused.cause, refused.worker, refused.timings) == ("no_kv_room", None, None)
    assert refused.detail == "agg: 8192 KV tokens a rank hold no sequence of 8192 tokens"


def replace_capacity(plan: SweepPlan, capacity: dict[CapacityKey, int | str]) -> SweepPlan:
    return SweepPlan(**{**plan.__dict__, "capacity": capacity})


@pytest.mark.parametrize("slots", [1, 4])
async def test_a_small_space_is_exhausted_with_each_point_once(
    make_config: Callable[..., SmartSearchConfig],
    make_sweep_plan: Callable[..., SweepPlan],
    slots: int,
) -> None:
    config = make_config(
        {
            "agg_max_num_batched_tokens": [8192, 16384, 32768],
            "agg_max_num_seqs": [256, 512],
            "router_mode": ["round_robin", "kv_router"],
        },
        sweep={"max_rounds": 20, "candidates_per_round": 10},
    )
    plan = make_sweep_plan(config)
    assert plan.branches[0].distinct_selections == 24
    run = await run_search(plan, slots=slots, enumerate_points=True)
    assert run.branch.state.phase is Phase.EXHAUSTED
    samples = {json.dumps(request.sample, sort_keys=True) for request in run.worker.requests}
    assert len(run.worker.requests) == len(samples) == len(run.search.candidates) == 24


@pytest.mark.parametrize(("rounds", "points"), [(1, None), (2, 4), (3, 4)])
def test_points_are_enumerated_if_the_budget_covers_them_all(
    make_config: Callable[..., SmartSearchConfig],
    make_space: Callable[..., BranchSpace],
    rounds: int,
    points: int | None,
) -> None:
    config = make_config(
        {"agg_max_num_seqs": [256, 512]}, sweep={"max_rounds": rounds, "candidates_per_round": 2}
    )
    assert enumerable_points(config, make_space(config)) == points


def test_a_range_of_loads_is_never_enumerated(
    make_config: Callable[..., SmartSearchConfig], make_space: Callable[..., BranchSpace]
) -> None:
    lengths = {"isl": 1000, "osl": 100, "num_request_ratio": 2.0}
    config = make_config(workload=lengths, goal={"target": "pareto"})
    assert enumerable_points(config, make_space(config)) is None


def seqs(*values: int) -> list[Assignment]:
    return [{"agg_max_num_seqs": value} for value in values]


async def test_a_duplicate_is_told_what_is_known_and_not_sent_again(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> None:
    config = make_config(
        {**SEARCHED, "gpu_budget": 2},
        sweep={"max_rounds": 2, "candidates_per_round": 2},
    )
    # In flight, then known; and the two new ones of the second round.
    script = seqs(256, 256, 512, 512, 256, 1024, 512, 512)
    run = await run_search(
        make_sweep_plan(config), make_sampler=lambda _: ScriptedSampler(script * 4)
    )
    assert [r.sample["agg_max_num_seqs"] for r in run.worker.requests] == [256, 512, 1024]
    by_value: dict[Any, set[str]] = {}
    for trial in run.told["agg"]:
        by_value.setdefault(trial.assignment["agg_max_num_seqs"], set()).add(str(trial.metrics))
    assert {value: len(metrics) for value, metrics in by_value.items()} == {
        256: 1,
        512: 1,
        1024: 1,
    }
    assert [trial.number for trial in run.told["agg"]][:3] == [0, 1, 2]
    assert run.branch.state.phase is Phase.STALLED
    assert run.branch.state.duplicates == run.branch.state.attempts - 3


async def test_the_last_wave_is_told_even_if_it_ends_while_a_duplicate_is_told(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> None:
    config = make_config(
        {**SEARCHED, "gpu_budget": 2},
        sweep={"max_rounds": 2, "candidates_per_round": 2},
    )
    # The second round's last two attempts of 22 are a duplicate and a new sample.
    script = seqs(256, 512, *[256] * 20, 256, 1024)
    sampler = ScriptedSampler(script)
    runs: list[Run] = []

    async def wait_for_the_last(trials: Sequence[Trial]) -> None:
        if [trial.number for trial in trials] == [22]:
            while len(runs[0].ledger.records) < 3:  # noqa: ASYNC110  # a ledger tells nobody
                await asyncio.sleep(0)

    sampler.on_tell = wait_for_the_last
    run = await run_search(
        make_sweep_plan(config),
        make_sampler=lambda _: sampler,
        started=lambda run, _: runs.append(run),
    )
    assert run.branch.state.phase is Phase.STALLED
    assert [trial.number for trial in sampler.history] == list(range(24))
    assert sampler.history[-1].metrics is not None


async def test_a_cancelled_search_keeps_what_it_has_found(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> None:
    config = make_config(
        SEARCHED, sweep={"max_rounds": 5, "candidates_per_round": 4, "parallel_evals": 4}
    )

    def cancel_at_the_sixth(run: Run, task: asyncio.Task[None]) -> None:
        def count(_: CandidateRecord) -> None:
            if len(run.ledger.records) == 6:
                task.cancel()

        run.ledger.on_record = count

    run = await run_search(make_sweep_plan(config), started=cancel_at_the_sixth)
    assert not run.branch.state.finished
    recorded = [record.candidate_id for record in run.ledger.records]
    assert len(recorded) == 6
    assert [candidate.candidate_id for candidate in run.search.candidates] == recorded


async def test_a_samplers_failure_ends_the_search(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> None:
    config = make_config(
        {"gpu_budget": 2, "agg_max_num_seqs": [256, 512]}, sweep={"candidates_per_round": 2}
    )
    with pytest.raises(BaseExceptionGroup) as failure:
        await run_search(make_sweep_plan(config), make_sampler=lambda _: ScriptedSampler(seqs(256)))
    assert failure.group_contains(IndexError)
