"""The baseline of a search: measured once before it, and confirmed with the best."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic import JsonValue
from support.searching import NoLog, Run, run_search, succeed, sweep_of

from schemas.config import SmartSearchConfig
from schemas.journal import Measured, Requested
from schemas.messages import EvaluationResult, Measurement, Sample
from schemas.results import RankedCandidate
from spica_async.judge.ranking import MIN_REPLICATES
from spica_async.plan.types import SweepPlan
from spica_async.search.baseline import BASELINE
from spica_async.search.branch_driver import SearchContext
from spica_async.search.branches import Branches
from spica_async.search.observer import Observer
from spica_async.search.result import sweep_result
from spica_async.space.branch import Selection
from spica_async.space.pool import ParallelConfig, RoleDeployment
from spica_async.space.shapes import ParallelShape

MakeConfig = Callable[..., SmartSearchConfig]
MakePlan = Callable[..., SweepPlan]
SPACE = {
    "gpu_budget": 1,
    "agg_max_num_seqs": [256, 512],
    "router_mode": ["kv_router", "round_robin"],
}
ID = "sweep-baseline"
ONE_GPU = ParallelConfig((("agg", RoleDeployment(ParallelShape(1), 1)),))


@pytest.fixture
def plan_with(make_config: MakeConfig, make_sweep_plan: MakePlan) -> Callable[[str], SweepPlan]:
    def plan(router: str) -> SweepPlan:
        config = make_config(SPACE, confirm={"top": 1, "loads": [1.0]}, baseline={"tp": 1})
        knobs: dict[str, JsonValue] = {"router_mode": router, "agg_max_num_seqs": 1024}
        return make_sweep_plan(
            config, sizes=(1,), baseline=Selection("agg", "vllm", ONE_GPU, knobs)
        )

    return plan


async def search(plan: SweepPlan, measure: Callable[[Sample], Measurement] = succeed) -> Run:
    return await run_search(plan, slots=2, measure=measure, enumerate_points=True)


def result_of(plan: SweepPlan, search: Branches) -> tuple[RankedCandidate | None, str | None]:
    result = sweep_result(
        sweep_of(plan),
        search,
        cut_short=None,
        evaluations=None,
        search_seconds=1.0,
        total_seconds=1.0,
    )
    assert all(one.candidate_id != ID for one in result.ranking)
    assert {one.gain is None for one in result.ranking} == {result.baseline is None}
    return result.baseline, result.baseline_problem


@pytest.mark.parametrize("router", ["round_robin", "kv_router"])
async def test_it_is_measured_beside_the_budget(
    plan_with: Callable[[str], SweepPlan], router: str
) -> None:
    plan = plan_with(router)
    run = await search(plan)
    assert run.search.is_over
    times = MIN_REPLICATES if router == "kv_router" else 1
    asked = [one for one in run.worker.requests if one.sample["agg_max_num_seqs"] == 1024]
    names = [ID, *(f"{ID}-r{number}" for number in range(1, times))]
    assert sorted(one.evaluation_id for one in asked) == names
    assert [one.replicate for one in asked] == list(range(times))
    assert len(run.ledger.records) == run.branch.state.unique_successes == 4
    baseline, problem = result_of(plan, run.search)
    assert baseline is not None
    assert (baseline.candidate_id, baseline.replicates, problem) == (ID, times, None)
    assert set(names) <= set(run.search.measured)


async def test_one_that_fails_is_named_and_ends_nothing(
    plan_with: Callable[[str], SweepPlan],
) -> None:
    def measure(sample: Sample) -> Measurement:
        if sample["agg_max_num_seqs"] == 1024:
            return Measurement.failed("replay_error", "it broke")
        return succeed(sample)

    plan = plan_with("kv_router")
    run = await search(plan, measure)
    assert run.search.is_over
    assert len(run.branch.candidates) == 4
    assert result_of(plan, run.search) == (None, "failed: replay_error: it broke")


def fact(number: int) -> Measured:
    sample: Sample = {"agg_max_num_seqs": 1024}
    result = EvaluationResult(
        evaluation_id=f"{ID}-r{number}" if number else ID,
        sweep_id="sweep",
        worker="fake",
        measurement=succeed(sample),
        wall_seconds=1.0,
    )
    return Measured(
        at=1.0, branch=BASELINE, number=0, result=result, waited_seconds=0.0, replicate=number
    )


async def test_it_is_where_an_earlier_run_has_left_it(
    plan_with: Callable[[str], SweepPlan],
) -> None:
    plan = plan_with("kv_router")
    search = Branches(
        SearchContext(sweep_of(plan), NoLog(), lambda: 1.0, bus="amqp://host"), Observer()
    )
    assert search.baseline is not None
    asked = [Requested(at=1.0, branch=BASELINE, number=0, replicate=n) for n in range(3)]
    await search.restore([asked[0], fact(0), asked[1], asked[2], fact(2)])
    assert search.measured == [ID, f"{ID}-r2"]
    # The next run waits for what is under way, and does not ask for it once more.
    assert search.requested == [f"{ID}-r1"]
    assert search.baseline.evaluation_seconds == 2.0
    assert search.baseline_candidate is not None
    assert search.baseline_candidate.replicates == 2
    # The first was no replay of the confirmation.
    assert search.confirmation.replays == 1


async def test_facts_of_none_are_refused(
    make_config: MakeConfig, make_sweep_plan: MakePlan
) -> None:
    search = Branches(
        SearchContext(sweep_of(make_sweep_plan(make_config())), NoLog(), lambda: 1.0), Observer()
    )
    with pytest.raises(Exception, match="facts of a branch baseline, and there is none"):
        await search.restore([fact(0)])
