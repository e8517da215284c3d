"""Branches without a search, and the facts that make them."""

from __future__ import annotations

from collections.abc import Callable

from support.searching import Ledger

from schemas.journal import BranchFact, Measured, Observed, SamplerStats, Suggested
from schemas.messages import EvaluationResult, Measurement, Sample
from spica_async.optimizer.proposals import Proposal
from spica_async.plan.types import SweepPlan
from spica_async.search.branch import Branch, patience
from spica_async.search.branches import sample_context
from spica_async.search.racing import Race


def branch_of(plan: SweepPlan, *, race_replays: int = 0) -> Branch:
    return Branch(
        sweep_id="sweep",
        config=plan.config,
        context=sample_context(plan),
        space=plan.branches[0],
        on_evaluated=Ledger().evaluated,
        shared_patience=patience(plan.config),
        race=Race(plan.config.goal, replays=race_replays),
    )


def all_broken(
    plan: SweepPlan, measure: Callable[[Sample], Measurement], samples: int
) -> list[BranchFact]:
    """The facts of a branch whose first samples, one by one, all fail."""
    branch, facts = branch_of(plan), list[BranchFact]()
    space = branch.space
    for index in range(samples):
        assignment = space.assignment_of(space.selection(index))
        selection, projection = space.select(assignment)
        proposal = Proposal(index, selection, "optimizer", assignment, projection)
        sampled = branch.sampled(proposal)
        suggested = Suggested(
            at=1.0,
            branch="agg",
            proposals=[sampled.as_proposed],
            instead=False,
            costs=SamplerStats(),
        )
        (evaluation,) = branch.suggested(suggested, [sampled]).new
        result = EvaluationResult(
            evaluation_id=evaluation.evaluation_id,
            sweep_id="sweep",
            worker="fake",
            measurement=measure(sampled.resolved.sample),
            wall_seconds=1.0,
        )
        measured = Measured(at=1.0, branch="agg", number=index, result=result, waited_seconds=0.0)
        branch.observed(branch.measured(measured))
        facts += [suggested, measured, Observed(at=1.0, branch="agg", numbers=[index])]
    return facts
