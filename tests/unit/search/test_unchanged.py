"""A sweep goes on with the model that it was begun with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from support.searching import sweep_of

from schemas.config import SmartSearchConfig
from schemas.journal import Planned
from schemas.messages import ModelFiles
from spica_async.engine.model_files import pack
from spica_async.errors import SpicaError
from spica_async.plan.types import SweepPlan
from spica_async.search.past_runs import PastRuns

ONE, OTHER = pack({"config.json": "1"}), pack({"config.json": "2"})


@pytest.fixture
def plan_with(
    make_config: Callable[..., SmartSearchConfig], make_sweep_plan: Callable[..., SweepPlan]
) -> Callable[[ModelFiles | None], SweepPlan]:
    plan = make_sweep_plan(make_config())
    return lambda files: replace(plan, model_files=files)


PlanWith = Callable[[ModelFiles | None], SweepPlan]


def begun_with(plan: SweepPlan) -> Planned:
    """As the journal gives it back."""
    fact = sweep_of(plan).planned_fact(at=0.0)
    return Planned.model_validate_json(fact.model_dump_json())


def resume(past: Planned, plan: SweepPlan) -> str | None:
    return sweep_of(plan, past=PastRuns(planned=past)).check_unchanged()


@pytest.mark.parametrize("files", [None, ONE], ids=["shipped", "own"])
def test_the_same_goes_on(plan_with: PlanWith, files: ModelFiles | None) -> None:
    past = begun_with(plan_with(files))
    assert resume(past, plan_with(files)) is None


@pytest.mark.parametrize("now", [OTHER, None], ids=["changed", "shipped"])
def test_another_is_refused(plan_with: PlanWith, now: ModelFiles | None) -> None:
    with pytest.raises(SpicaError, match=r"^search_space\.model_name: the model's folder has chan"):
        resume(begun_with(plan_with(ONE)), plan_with(now))


def test_one_of_an_older_version_goes_on_with_a_word(plan_with: PlanWith) -> None:
    older = begun_with(plan_with(ONE)).model_dump_json(exclude={"model_sha256"})
    past = Planned.model_validate_json(older)
    message = str(resume(past, plan_with(ONE)))
    assert "did not note what the model's folder held" in message
