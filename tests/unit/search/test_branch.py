"""What facts make of a branch, once or twice, and which of them do not go with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.facts import all_broken, branch_of
from support.searching import SEARCHED

from schemas.config import SmartSearchConfig
from schemas.journal import BranchFact, Measured, Requested, Suggested
from schemas.messages import Measurement, Sample
from spica_async.errors import SpicaError
from spica_async.optimizer.proposals import proposal_of
from spica_async.plan.types import SweepPlan
from spica_async.search.branch import Branch
from spica_async.search.branch_resume import BranchRestorer
from spica_async.search.schedule.state import Phase


def broken(sample: Sample) -> Measurement:
    return Measurement(outcome="failed", cause="replay_error", detail="it broke")


@pytest.fixture
def plan(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> SweepPlan:
    sweep = {"schedule": "continuous", "max_rounds": 4, "candidates_per_round": 2}
    return make_sweep_plan(make_config(SEARCHED, sweep=sweep), sizes=(1, 2, 4))


def first_facts(plan: SweepPlan) -> tuple[Suggested, Measured]:
    suggested, measured, _ = all_broken(plan, broken, samples=1)
    assert isinstance(suggested, Suggested)
    assert isinstance(measured, Measured)
    return suggested, measured


def apply(branch: Branch, suggested: Suggested) -> int:
    """Let a branch take suggestions; how many of them are evaluated."""
    sampled = [branch.sampled(proposal_of(branch.space, one)) for one in suggested.proposals]
    return len(branch.suggested(suggested, sampled).new)


def test_a_verdict_that_is_foreseen_changes_nothing_and_is_the_one_that_comes(
    plan: SweepPlan,
) -> None:
    suggested, measured = first_facts(plan)
    branch = branch_of(plan)
    assert apply(branch, suggested) == 1
    record = branch.verdict(measured)
    assert record is not None
    assert (record.outcome, record.found_seconds, branch.state.in_flight) == ("failed", 1.0, 1)
    assert [one.number for one in branch.measured(measured)] == [0]
    assert branch.state.in_flight == 0


def test_a_branch_is_concluded_once_and_takes_nothing_more(plan: SweepPlan) -> None:
    suggested, _ = first_facts(plan)
    branch = branch_of(plan)
    assert branch.concluded("branch") == branch.concluded("sweep") == []
    assert (branch.state.phase, branch.converged) == (Phase.CONVERGED, True)
    assert apply(branch, suggested) == 0


@pytest.mark.parametrize("kind", ["requested", "suggested", "measured"])
def test_a_fact_that_does_not_go_with_those_before_it_is_named(plan: SweepPlan, kind: str) -> None:
    suggested, measured = first_facts(plan)
    other = suggested.proposals[0].model_copy(update={"sample": "another"})
    facts: dict[str, BranchFact] = {
        "requested": Requested(at=1.0, branch="agg", number=0),
        "suggested": suggested.model_copy(update={"proposals": [other]}),
        "measured": measured,
    }
    with pytest.raises(SpicaError, match=f"branch agg: what the journal has as '{kind}' does not"):
        BranchRestorer(branch_of(plan)).apply(facts[kind])


def test_requests_that_are_under_way_no_more_are_sent_again(plan: SweepPlan) -> None:
    suggested, _ = first_facts(plan)
    restorer = BranchRestorer(branch_of(plan))
    restorer.apply(suggested)
    restorer.apply(Requested(at=1.0, branch="agg", number=0))
    assert [one.requested for one in restorer.branch.open.values()] == [True]
    restorer.give_up_requests()
    assert [one.requested for one in restorer.branch.open.values()] == [False]
