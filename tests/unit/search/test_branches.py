"""Whole branches over a bus, with a worker whose measurements are known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.searching import (
    SEARCHED,
    Measure,
    Run,
    ScriptedSampler,
    run_search,
    seqs,
    succeed,
    succeed_or_fail,
    throughput_of,
)

from schemas.config import SmartSearchConfig
from schemas.goal import OptimizationTarget
from schemas.messages import (
    Measurement,
    Sample,
)
from schemas.results import CandidateRecord
from spica_async.engine.model_files import pack
from spica_async.judge.scoring import rank
from spica_async.optimizer.types import Suggestion, Trial
from spica_async.plan.types import SweepPlan, enumerable_points
from spica_async.search.schedule.state import Phase
from spica_async.space.branch import BranchSpace
from spica_async.space.capacity import CapacityKey
from spica_async.space.shapes import ParallelShape


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
        sweep={
            "schedule": "rounds",
            "max_rounds": 4,
            "candidates_per_round": 3,
            "parallel_evals": 4,
        },
    )
    plan = make_sweep_plan(config, sizes=(1, 2, 4))
    one = await run_search(plan, slots=1, measure=measure)
    four = await run_search(plan, slots=4, measure=measure)
    assert one.observed == four.observed
    assert {len(history) for history in one.observed.values()} != {0}
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
        numbers = [trial.number for trial in one.observed[branch.space.mode]]
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


async def test_a_model_of_the_users_goes_along_and_its_folder_does_not(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> None:
    files = pack({"config.json": "{}"})
    config = make_config(
        space={"model_name": "/home/me/mine"},
        sweep={"max_rounds": 1, "candidates_per_round": 1},
    )
    run = await run_search(replace(make_sweep_plan(config), model_files=files))
    (body,) = run.worker.bodies
    assert json.loads(body)["data"]["model"] == files.model_dump()
    assert b"/home/me/mine" not in body
    # For us it is called as before.
    (record,) = run.ledger.records
    assert record.config["model_name"] == "/home/me/mine"


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
        *("evaluation_id", "sweep_id", "run", "sample", "model", "load", "sla"),
        *("max_eval_seconds", "replicate", "capture_interval_ms"),
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


async def test_a_record_holds_all_of_a_candidate(
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
        "window": "whole",
        "facts": {
            "needs_wide_ep": False,
            "backend_version": "1",
            "agg_kv_capacity_tokens": candidate.facts["agg_kv_capacity_tokens"],
        },
        "source": "optimizer",
        "stand_in": None,
        "worker": "fake",
        "replicates": 1,
        "interval": (score, score),
        "reused": None,
        "found_seconds": 1.5,
    }
    assert record.projection is not None
    assert set(record.projection) == {
        *("requested", "actual", "distance", "mode_projected", "config"),
    }
    timings = record.timings.model_dump()
    assert timings == {"waited": 0.0, "build": 0.25, "replay": 0.5, "wall": 1.0}
    assert run.branch.evaluation_seconds == 1.0
    assert run.ledger.progress[-1] == ("agg", 1, 1)
    assert (run.branch.budget, run.branch.state.target) == (1, 1)


async def test_a_failure_is_observed_as_one_and_its_record_says_why(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> None:
    config = make_config(SEARCHED, sweep={"max_rounds": 5, "candidates_per_round": 2})
    run = await run_search(
        make_sweep_plan(config),
        measure=lambda _: Measurement(outcome="failed", cause="time_limit", detail="after 5 s"),
    )
    assert run.branch.state.phase is Phase.FAILED
    assert [trial.metrics for trial in run.observed["agg"]] == [None] * run.branch.state.attempts
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
        confirm={"enabled": "off"},
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


async def test_a_duplicate_is_observed_as_what_is_known_and_not_sent_again(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> None:
    config = make_config(
        {**SEARCHED, "gpu_budget": 2},
        sweep={"schedule": "rounds", "max_rounds": 2, "candidates_per_round": 2},
    )
    # In flight, then known; and the two new ones of the second round.
    script = seqs(256, 256, 512, 512, 256, 1024, 512, 512)
    run = await run_search(
        make_sweep_plan(config), make_sampler=lambda _: ScriptedSampler(script * 4)
    )
    assert [r.sample["agg_max_num_seqs"] for r in run.worker.requests] == [256, 512, 1024]
    by_value: dict[Any, set[str]] = {}
    for trial in run.observed["agg"]:
        by_value.setdefault(trial.assignment["agg_max_num_seqs"], set()).add(str(trial.metrics))
    assert {value: len(metrics) for value, metrics in by_value.items()} == {
        256: 1,
        512: 1,
        1024: 1,
    }
    assert [trial.number for trial in run.observed["agg"]][:3] == [0, 1, 2]
    assert run.branch.state.phase is Phase.STALLED
    assert run.branch.state.duplicates == run.branch.state.attempts - 3


async def test_the_last_wave_is_observed_even_if_it_ends_while_a_duplicate_is_observed(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> None:
    config = make_config(
        {**SEARCHED, "gpu_budget": 2},
        sweep={"schedule": "rounds", "max_rounds": 2, "candidates_per_round": 2},
    )
    # The second round's last two attempts of 22 are a duplicate and a new sample.
    script = seqs(256, 512, *[256] * 20, 256, 1024)
    sampler = ScriptedSampler(script)
    runs: list[Run] = []

    async def wait_for_the_last(trials: Sequence[Trial]) -> None:
        if [trial.number for trial in trials] == [22]:
            while len(runs[0].ledger.records) < 3:  # noqa: ASYNC110  # a ledger observations nobody
                await asyncio.sleep(0)

    sampler.on_observe = wait_for_the_last
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


async def test_what_is_proposed_after_the_search_was_stopped_is_not_taken(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> None:
    class SlowSampler(ScriptedSampler):
        async def ask(self, count: int) -> list[Suggestion]:
            asked.set()
            await go_on.wait()
            return await super().ask(count)

    asked, go_on = asyncio.Event(), asyncio.Event()
    config = make_config(
        {**SEARCHED, "gpu_budget": 2}, sweep={"schedule": "rounds", "candidates_per_round": 2}
    )

    async def stop(run: Run, task: asyncio.Task[None]) -> None:
        await asked.wait()
        assert run.search.stop() == frozenset()
        go_on.set()
        await asyncio.sleep(0.01)
        assert not task.done()
        task.cancel()

    stopping: list[asyncio.Task[None]] = []
    run = await run_search(
        make_sweep_plan(config),
        make_sampler=lambda _: SlowSampler(seqs(256, 512)),
        started=lambda *started: stopping.append(asyncio.ensure_future(stop(*started))),
    )
    await stopping[0]
    assert run.branch.state.attempts == 0
    assert run.worker.requests == []


async def test_a_samplers_failure_ends_the_search(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> None:
    config = make_config(
        {"gpu_budget": 2, "agg_max_num_seqs": [256, 512]}, sweep={"candidates_per_round": 2}
    )
    with pytest.raises(BaseExceptionGroup) as failure:
        await run_search(make_sweep_plan(config), make_sampler=lambda _: ScriptedSampler(seqs(256)))
    assert failure.group_contains(IndexError)
