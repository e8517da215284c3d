"""A search that finds nothing ends by a fact of its own, and old journals do without it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from support.facts import all_broken, branch_of
from support.searching import SEARCHED, run_search, throughput_of

from schemas.config import SmartSearchConfig
from schemas.journal import BranchFact, Concluded
from schemas.messages import Measurement, Sample
from spica_async.plan.types import SweepPlan
from spica_async.report.screen import best_so_far
from spica_async.search.branch import Branch
from spica_async.search.branch_resume import BranchRestorer
from spica_async.search.result import branch_result
from spica_async.search.schedule.state import Phase

# More samples than the budget, so that they are no list: a branch without any is given up by 22.
SWEEP = {"max_rounds": 4, "candidates_per_round": 2, "parallel_evals": 2}
MakePlan = Callable[..., SweepPlan]


def broken(sample: Sample) -> Measurement:
    return Measurement(outcome="failed", cause="replay_error", detail="it broke")


def broken_in_many_ways(sample: Sample) -> Measurement:
    detail = f"it broke at {throughput_of(sample)}"
    return Measurement(outcome="failed", cause="replay_error", detail=detail)


def broken_at_length(sample: Sample) -> Measurement:
    return Measurement(outcome="failed", cause="replay_error", detail="it broke " * 50)


@pytest.fixture
def plan(
    make_config: Callable[..., SmartSearchConfig],
    make_sweep_plan: MakePlan,
    monkeypatch: pytest.MonkeyPatch,
) -> SweepPlan:
    monkeypatch.setattr("spica_async.search.schedule.state.ENOUGH_FAILURES", 1)
    config = make_config(SEARCHED, sweep={**SWEEP, "schedule": "continuous"})
    return make_sweep_plan(config, sizes=(1, 2, 4))


@pytest.mark.parametrize(
    ("measure", "phase"), [(broken, Phase.FAILED), (broken_in_many_ways, Phase.STALLED)]
)
async def test_a_search_that_finds_nothing_is_given_up(
    plan: SweepPlan, measure: Callable[[Sample], Measurement], phase: Phase
) -> None:
    run = await run_search(plan, slots=2, measure=measure)
    branch = run.branch
    assert branch.state.phase is phase
    assert 22 <= len(run.ledger.records) <= 24
    numbers = sorted(trial.number for trial in run.observed["agg"])
    assert numbers == list(range(branch.state.attempts))
    result = branch_result(branch)
    assert (result.end, branch.converged) == (phase.value, True)
    assert "replay_error: it broke" in result.reason
    if phase is Phase.STALLED:
        count = len(run.ledger.records)
        assert f"ran out of attempts: {count} of {count} are failed: replay_error" in result.reason


async def test_progress_shows_what_all_that_was_tried_fails_by(plan: SweepPlan) -> None:
    run = await run_search(plan, slots=2, measure=broken_in_many_ways)
    shown = best_so_far(run.branch, plan.config.goal)
    count = len(run.ledger.records)
    assert shown.startswith(f"none: {count} of {count} are failed: replay_error: it broke at ")
    run = await run_search(plan, measure=broken_at_length)
    assert best_so_far(run.branch, plan.config.goal).endswith("it broke it broke ...")


def restored(plan: SweepPlan, facts: Sequence[BranchFact]) -> Branch:
    restorer = BranchRestorer(branch_of(plan))
    for fact in facts:
        restorer.apply(fact)
    return restorer.branch


def test_a_journal_of_a_branch_that_went_on_for_longer_is_read_as_it_was_written(
    plan: SweepPlan,
) -> None:
    # Where failures differed, a branch used to go on to the attempts of all of its rounds.
    longer = plan.config.sweep.model_copy(update={"candidates_per_round": 3})
    config = plan.config.model_copy(update={"sweep": longer})
    facts = all_broken(replace(plan, config=config), broken_in_many_ways, samples=26)
    branch = restored(plan, facts)
    assert (branch.state.attempts, branch.state.wanted, branch.should_conclude) == (26, 0, True)
    concluded = Concluded(at=1.0, branch="agg", by="branch")
    branch = restored(plan, [*facts, concluded])
    assert (branch.state.phase, branch.should_conclude) == (Phase.STALLED, False)


def test_a_branch_that_had_failed_too_early_goes_on_where_its_sweep_does(plan: SweepPlan) -> None:
    # Eight that failed alike used to be the end of it, whatever was suggested meanwhile.
    branch = restored(plan, all_broken(plan, broken, samples=8))
    assert (branch.state.phase, branch.should_conclude) == (Phase.ASKING, False)
