"""Searches without rounds, and searches that end before their budget is found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from support.searching import (
    SEARCHED,
    FakeSampler,
    FakeWorker,
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
from schemas.messages import Measurement, Sample
from schemas.results import CandidateRecord
from spica_async.bus.memory import MemoryBus
from spica_async.optimizer.types import Suggestion, Trial
from spica_async.plan.types import SweepPlan
from spica_async.search.schedule.continuous import ContinuousState
from spica_async.search.schedule.state import Phase
from spica_async.space.parameters import FloatParameter

MakePlan = Callable[..., SweepPlan]
MakeConfig = Callable[..., SmartSearchConfig]


@pytest.fixture
def plan_of(make_config: MakeConfig, make_sweep_plan: MakePlan) -> Callable[..., SweepPlan]:
    """A plan of the searched space under these settings of the sweep."""

    def make(*, modes: Sequence[str] = ("agg",), **sweep: Any) -> SweepPlan:
        config = make_config({**SEARCHED, "deployment_mode": list(modes)}, sweep=sweep)
        return make_sweep_plan(config, sizes=(1, 2, 4))

    return make


def rising(sample: Sample) -> Measurement:
    """Measured in order, each better than the one before."""
    rising.seen += 1  # type: ignore[attr-defined]  # a counter of this test's
    report = {"output_throughput_tok_s": float(rising.seen)}  # type: ignore[attr-defined]
    return Measurement(outcome="feasible", report=report)


class TestContinuous:
    @pytest.mark.parametrize("measure", [succeed, succeed_or_fail])
    @pytest.mark.parametrize("slots", [1, 3, 8])
    async def test_the_budget_is_found_exactly_over_all_branches(
        self, plan_of: Callable[..., SweepPlan], measure: Measure, slots: int
    ) -> None:
        plan = plan_of(
            modes=["disagg", "agg"],
            max_rounds=4,
            candidates_per_round=3,
            parallel_evals=slots,
            schedule="continuous",
        )
        run = await run_search(plan, slots=slots, measure=measure)
        for branch in run.search.branches:
            assert branch.state.phase is Phase.COMPLETED
            assert branch.state.tally["feasible"] == 12
            observed = run.observed[branch.space.mode]
            assert sorted(trial.number for trial in observed) == list(range(branch.state.attempts))
            rounds = [r.round for r in run.ledger.records if r.branch == branch.space.mode]
            assert rounds == sorted(rounds) or slots > 1
            assert 1 in rounds
            assert set(rounds) <= {1, 2, 3, 4}
        sent = [request.evaluation_id for request in run.worker.requests]
        assert len(set(sent)) == len(sent) == len(run.ledger.records)

    async def test_what_was_measured_is_observed_while_the_rest_is_in_flight(
        self, plan_of: Callable[..., SweepPlan]
    ) -> None:
        plan = plan_of(
            max_rounds=3, candidates_per_round=4, parallel_evals=4, schedule="continuous"
        )
        in_flight: list[int] = []

        class Watching(FakeSampler):
            async def observe(self, trials: Sequence[Trial]) -> None:
                in_flight.append(self.asked - len(self.history) - len(trials))
                await super().observe(trials)

        run = await run_search(plan, slots=4, make_sampler=Watching)
        assert run.branch.state.phase is Phase.COMPLETED
        # Rounds would observe with nothing in flight; here that is so at the very end alone.
        assert sum(number == 0 for number in in_flight) <= 1
        assert max(in_flight) <= 4 + 2

    async def test_asks_go_on_while_replays_run(self, plan_of: Callable[..., SweepPlan]) -> None:
        plan = plan_of(
            max_rounds=3, candidates_per_round=2, parallel_evals=2, schedule="continuous"
        )
        gate = asyncio.Semaphore(1)
        unanswered: list[int] = []

        class Counting(FakeSampler):
            async def ask(self, count: int) -> list[Suggestion]:
                unanswered.append(self.asked - len(self.history))
                return await super().ask(count)

        def worker(bus: MemoryBus) -> list[FakeWorker]:
            return [FakeWorker(bus, slots=2, gate=gate)]

        def release(run: Run, _: asyncio.Task[None]) -> None:
            def one_more(__: CandidateRecord) -> None:
                gate.release()

            run.ledger.on_record = one_more

        # Of two that run, one is stuck until the other has ended: asks do not wait for both.
        run = await run_search(plan, make_sampler=Counting, make_workers=worker, started=release)
        assert run.branch.state.phase is Phase.COMPLETED
        # The first two fill the slots; from then on there are replays whenever it is asked.
        assert unanswered[:2] == [0, 2]
        assert set(unanswered[2:]) == {2}

    async def test_no_more_is_in_flight_than_suits_the_slots(
        self, plan_of: Callable[..., SweepPlan]
    ) -> None:
        plan = plan_of(
            max_rounds=5, candidates_per_round=8, parallel_evals=8, schedule="continuous"
        )
        in_flight: list[int] = []

        def watch(run: Run, _: asyncio.Task[None]) -> None:
            def note(__: CandidateRecord) -> None:
                in_flight.append(run.branch.state.in_flight)
                if len(in_flight) == 20:
                    run.search.suit(0)

            run.search.suit(1)
            run.ledger.on_record = note

        run = await run_search(plan, slots=1, started=watch)
        assert run.branch.state.phase is Phase.COMPLETED
        # One runs, a batch of four waits, and one more has just been found.
        assert max(in_flight[:20]) <= 1 + 4
        # Nothing is known of any slot: as much as may be is in flight again.
        assert max(in_flight[20:]) > 8

    async def test_a_branch_takes_over_the_slots_of_one_that_has_ended(
        self, plan_of: Callable[..., SweepPlan], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Eight of disagg fail, and it is given up.
        monkeypatch.setattr("spica_async.search.schedule.state.ENOUGH_FAILURES", 1)
        monkeypatch.setattr("spica_async.search.schedule.continuous.ATTEMPTS_PER_TARGET", 2)
        plan = plan_of(
            modes=["disagg", "agg"],
            max_rounds=6,
            candidates_per_round=4,
            parallel_evals=5,
            schedule="continuous",
        )
        parallel: dict[str, list[int]] = {}

        def watch(run: Run, _: asyncio.Task[None]) -> None:
            def note(record: CandidateRecord) -> None:
                for branch in run.search.branches:
                    assert isinstance(branch.state, ContinuousState)
                    if branch.space.mode == record.branch:
                        parallel.setdefault(record.branch, []).append(branch.state.parallel)

            run.ledger.on_record = note

        def fails_in_disagg(sample: Sample) -> Measurement:
            if sample["deployment_mode"] == "disagg":
                return Measurement(outcome="failed", cause="replay_error", detail="it broke")
            return succeed(sample)

        run = await run_search(plan, slots=2, measure=fails_in_disagg, started=watch)
        phases = {branch.space.mode: branch.state.phase for branch in run.search.branches}
        assert phases == {"disagg": Phase.FAILED, "agg": Phase.COMPLETED}
        assert set(parallel["disagg"]) == {3}
        assert (parallel["agg"][0], parallel["agg"][-1]) == (3, 5)

    async def test_failures_during_an_ask_do_not_lose_its_suggestions(
        self, plan_of: Callable[..., SweepPlan]
    ) -> None:
        plan = plan_of(
            max_rounds=4, candidates_per_round=2, parallel_evals=3, schedule="continuous"
        )
        gate = asyncio.Semaphore(0)
        runs: list[Run] = []
        measured = 0

        def fails_twice(sample: Sample) -> Measurement:
            nonlocal measured
            measured += 1
            if measured <= 2:
                return Measurement(outcome="failed", cause="replay_error", detail="it broke")
            return succeed(sample)

        class Slow(FakeSampler):
            asks = 0

            async def ask(self, count: int) -> list[Suggestion]:
                self.asks += 1
                if self.asks == 2:
                    # A round's worth fails alike while this is under way, and the next succeeds.
                    gate.release()
                    gate.release()
                    while len(runs[0].ledger.records) < 2:  # noqa: ASYNC110  # a ledger observations nobody
                        await asyncio.sleep(0)
                    for _ in range(99):
                        gate.release()
                return await super().ask(count)

        run = await run_search(
            plan,
            make_sampler=Slow,
            make_workers=lambda bus: [FakeWorker(bus, fails_twice, slots=3, gate=gate)],
            started=lambda run, _: runs.append(run),
        )
        assert run.branch.state.phase is Phase.COMPLETED
        observed = sorted(trial.number for trial in run.observed["agg"])
        assert observed == list(range(run.branch.state.attempts))


class TestPatience:
    async def test_it_is_lost_with_the_last_candidate_that_it_allows(
        self, plan_of: Callable[..., SweepPlan]
    ) -> None:
        plan = plan_of(
            schedule="rounds", max_rounds=9, candidates_per_round=1, parallel_evals=1, patience=4
        )
        same = Measurement(outcome="feasible", report={"output_throughput_tok_s": 7.0})
        run = await run_search(plan, measure=lambda _: same)
        assert run.branch.state.phase is Phase.CONVERGED
        assert len(run.ledger.records) == 5

    @pytest.mark.parametrize("schedule", ["rounds", "continuous"])
    async def test_what_completes_its_budget_anyway_has_not_converged(
        self, plan_of: Callable[..., SweepPlan], schedule: str
    ) -> None:
        plan = plan_of(
            max_rounds=1,
            candidates_per_round=5,
            parallel_evals=5,
            patience=4,
            schedule=schedule,
        )
        same = Measurement(outcome="feasible", report={"output_throughput_tok_s": 7.0})
        run = await run_search(plan, slots=5, measure=lambda _: same)
        assert run.branch.state.phase is Phase.COMPLETED
        if schedule == "rounds":
            assert not run.search.converged

    @pytest.mark.parametrize("schedule", ["rounds", "continuous"])
    async def test_a_branch_that_gets_no_better_ends(
        self, plan_of: Callable[..., SweepPlan], schedule: str
    ) -> None:
        plan = plan_of(
            max_rounds=9,
            candidates_per_round=2,
            parallel_evals=2,
            patience=4,
            schedule=schedule,
        )
        same = Measurement(outcome="feasible", report={"output_throughput_tok_s": 7.0})
        run = await run_search(plan, measure=lambda _: same)
        assert run.branch.state.phase is Phase.CONVERGED
        assert run.branch.converged
        # The first is the best, four more are no better, and what is in flight is waited for.
        assert 5 <= len(run.ledger.records) <= 5 + 2 + 2
        assert run.branch.state.in_flight == 0

    @pytest.mark.parametrize("schedule", ["rounds", "continuous"])
    async def test_one_that_gets_better_goes_on_to_its_budget(
        self, plan_of: Callable[..., SweepPlan], schedule: str
    ) -> None:
        rising.seen = 0  # type: ignore[attr-defined]
        plan = plan_of(
            max_rounds=6,
            candidates_per_round=2,
            parallel_evals=1,
            patience=1,
            schedule=schedule,
        )
        run = await run_search(plan, measure=rising)
        assert run.branch.state.phase is Phase.COMPLETED
        assert not run.search.converged

    async def test_each_branch_ends_for_itself(self, plan_of: Callable[..., SweepPlan]) -> None:
        rising.seen = 10  # type: ignore[attr-defined]
        plan = plan_of(
            modes=["disagg", "agg"],
            max_rounds=8,
            candidates_per_round=2,
            parallel_evals=2,
            patience=3,
        )
        same = Measurement(outcome="feasible", report={"output_throughput_tok_s": 7.0})

        def only_agg_rises(sample: Sample) -> Measurement:
            return rising(sample) if sample["deployment_mode"] == "agg" else same

        run = await run_search(plan, measure=only_agg_rises)
        disagg, agg = run.search.branches
        assert (disagg.state.phase, disagg.converged) == (Phase.CONVERGED, True)
        assert (agg.state.phase, agg.converged) == (Phase.COMPLETED, False)
        assert not run.search.converged

    async def test_the_sweep_ends_when_no_branch_makes_it_better(
        self, plan_of: Callable[..., SweepPlan]
    ) -> None:
        rising.seen = 0  # type: ignore[attr-defined]
        plan = plan_of(
            modes=["disagg", "agg"],
            max_rounds=20,
            candidates_per_round=2,
            parallel_evals=2,
            patience=10,
        )

        def rises_below_a_constant(sample: Sample) -> Measurement:
            if sample["deployment_mode"] == "agg":
                return rising(sample)
            return Measurement(outcome="feasible", report={"output_throughput_tok_s": 1000.0})

        run = await run_search(plan, measure=rises_below_a_constant)
        # Its own best rises with every candidate, and yet it adds nothing to the sweep's.
        agg = run.search.branches[1]
        assert (agg.state.phase, agg.converged) == (Phase.CONVERGED, False)
        assert run.search.converged

    async def test_the_end_does_not_depend_on_the_slots(
        self, plan_of: Callable[..., SweepPlan]
    ) -> None:
        plan = plan_of(
            schedule="rounds",
            max_rounds=9,
            candidates_per_round=3,
            parallel_evals=4,
            patience=5,
            min_improvement=0.5,
        )
        one = await run_search(plan, slots=1)
        four = await run_search(plan, slots=4)
        assert one.branch.state.phase is Phase.CONVERGED
        assert one.observed == four.observed


class TestFirstProposals:
    async def test_the_centre_then_the_seeds_then_the_optimizer(
        self, plan_of: Callable[..., SweepPlan]
    ) -> None:
        plan = plan_of(max_rounds=1, candidates_per_round=6, parallel_evals=6)
        space = plan.branches[0]
        seeds = tuple(space.selection(index) for index in (3, 11))
        run = await run_search(replace(plan, seeds={"agg": seeds}))
        by_number = sorted(run.ledger.records, key=lambda record: record.number)
        sources = [record.source for record in by_number]
        assert sources[:4] == ["optimizer", "warm_start", "warm_start", "optimizer"]
        assert [by_number[n].projection["config"] for n in (1, 2)] == [  # type: ignore[index]
            space.select(space.assignment_of(seed))[1].as_metadata()["config"] for seed in seeds
        ]

    async def test_seeds_wait_for_the_next_round_if_one_has_no_room(
        self, plan_of: Callable[..., SweepPlan]
    ) -> None:
        plan = plan_of(max_rounds=4, candidates_per_round=1, parallel_evals=1)
        seeds = tuple(plan.branches[0].selection(index) for index in (3, 11))
        run = await run_search(replace(plan, seeds={"agg": seeds}))
        assert [record.source for record in run.ledger.records] == [
            "optimizer",
            "warm_start",
            "warm_start",
            "optimizer",
        ]


class TestNeighbours:
    async def test_one_beside_it_is_tried_with_every_duplicate(
        self, make_config: MakeConfig, make_sweep_plan: MakePlan
    ) -> None:
        config = make_config(
            {**SEARCHED, "gpu_budget": 2}, sweep={"max_rounds": 1, "candidates_per_round": 6}
        )

        class Stubborn(FakeSampler):
            def _draw(self, chance: Any) -> Any:
                return super()._draw(chance) | {
                    "agg_max_num_seqs": 256,
                    "agg_max_num_batched_tokens": 8192,
                }

        run = await run_search(
            make_sweep_plan(config), make_sampler=Stubborn, finds_neighbours=True
        )
        assert run.branch.state.phase is Phase.COMPLETED
        assert len(run.worker.requests) == 6
        sources = [record.source for record in run.ledger.records]
        assert sources.count("neighbour") >= 4
        # Twelve rather than the 66 of a search that would end without them.
        assert run.branch.state.attempts <= 12
        numbers = sorted(trial.number for trial in run.observed["agg"])
        assert numbers == list(range(run.branch.state.attempts))

    async def test_near_the_end_of_the_attempts_there_are_no_more_than_are_left(
        self, make_config: MakeConfig, make_sweep_plan: MakePlan
    ) -> None:
        config = make_config(
            {**SEARCHED, "gpu_budget": 2}, sweep={"max_rounds": 1, "candidates_per_round": 4}
        )

        class Stuck(FakeSampler):
            def _draw(self, chance: Any) -> Any:
                return {
                    parameter.name: self._first(parameter) for parameter in self.space.parameters
                }

            def _first(self, parameter: Any) -> Any:
                return (
                    parameter.low if isinstance(parameter, FloatParameter) else parameter.values[0]
                )

        def fails(sample: Sample) -> Measurement:
            why = "it broke" if throughput_of(sample) < 500 else "it fell"
            return Measurement(outcome="failed", cause="replay_error", detail=why)

        run = await run_search(
            make_sweep_plan(config, sizes=(1, 2)),
            measure=fails,
            make_sampler=Stuck,
            finds_neighbours=True,
        )
        assert run.branch.state.attempts == 44

    async def test_what_fails_stalls_with_them_too(
        self, make_config: MakeConfig, make_sweep_plan: MakePlan
    ) -> None:
        config = make_config(
            {**SEARCHED, "gpu_budget": 8, "deployment_mode": ["disagg"]},
            sweep={"max_rounds": 1, "candidates_per_round": 2},
        )

        def fails(sample: Sample) -> Measurement:
            why = "it broke" if throughput_of(sample) < 500 else "it fell"
            return Measurement(outcome="failed", cause="replay_error", detail=why)

        plan = make_sweep_plan(config, sizes=(1, 2, 4))
        run = await run_search(plan, measure=fails, finds_neighbours=True)
        assert run.branch.state.phase is Phase.STALLED
        assert run.branch.state.attempts == 22

    async def test_without_them_the_sampler_is_asked_again(
        self, make_config: MakeConfig, make_sweep_plan: MakePlan
    ) -> None:
        config = make_config(
            {**SEARCHED, "gpu_budget": 2}, sweep={"max_rounds": 1, "candidates_per_round": 2}
        )
        script = seqs(256, 256, 256, 512)
        run = await run_search(
            make_sweep_plan(config), make_sampler=lambda _: ScriptedSampler(script)
        )
        assert run.branch.state.attempts == 4
