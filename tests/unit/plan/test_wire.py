"""Plans and requests for them, sent as JSON and read again."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.planning import CLOSED_LOOP, SMALL, FakeEngine, plan

from schemas.config import SmartSearchConfig
from schemas.messages import TraceLoad
from schemas.search_space import Backend, DeploymentMode, Role
from spica_async.config.load import load_config
from spica_async.engine.facts import HardwareFacts, ModelFacts
from spica_async.errors import InputError
from spica_async.plan.load_forecast import EntryLoss, LoadPredictorResult
from spica_async.plan.types import Dropped, PlanRequest, SweepPlan
from spica_async.plan.wire import decode_plan, decode_request, encode_plan, encode_request
from spica_async.space.branch import BranchSpace, Selection
from spica_async.space.capacity import CapacityKey
from spica_async.space.knobs import Knob
from spica_async.space.pool import ParallelConfig, RoleDeployment, menu_pool
from spica_async.space.product import enumerate_pool
from spica_async.space.shapes import enumerate_shapes

SHAPES = st.sampled_from(enumerate_shapes(is_moe=True, gpu_budget=16))
BACKENDS = st.sampled_from(get_args(Backend))
DISAGG: DeploymentMode = "disagg"
ROLES: list[Role] = ["prefill", "decode"]
finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
deployments = st.builds(RoleDeployment, SHAPES, st.integers(1, 99))
configs = st.tuples(deployments, deployments).map(
    lambda pair: ParallelConfig(tuple(zip(ROLES, pair, strict=True)))
)
menus = st.dictionaries(configs, st.sets(BACKENDS, min_size=1), max_size=5).map(
    lambda menu: menu_pool(ROLES, menu)
)
products = st.builds(
    lambda shapes, budget: enumerate_pool(ROLES, shapes, gpu_budget=budget),
    st.dictionaries(
        BACKENDS, st.fixed_dictionaries({role: st.sets(SHAPES) for role in ROLES}), max_size=3
    ),
    st.integers(1, 500),
)
knobs = st.builds(Knob, texts, st.lists(json_values, min_size=1, max_size=3).map(tuple))
branches = st.builds(
    BranchSpace,
    mode=st.just(DISAGG),
    backend=knobs,
    pool=menus | products,
    knobs=st.lists(knobs, max_size=3).map(tuple),
    ignored=st.dictionaries(BACKENDS, st.frozensets(texts, max_size=3)),
    kv_load=st.none() | finite | st.tuples(finite, finite),
    gpu_budget=st.integers(1, 10**6),
)
entries = texts | st.dictionaries(texts, json_values, max_size=3)
losses = st.builds(EntryLoss, entries, st.floats(allow_nan=False), st.none() | texts)
predictors = st.builds(
    LoadPredictorResult,
    st.dictionaries(st.integers(1), entries),
    st.dictionaries(st.integers(1), st.lists(losses, max_size=2).map(tuple)),
    st.none(),
)
selections = st.builds(
    Selection,
    st.just(DISAGG),
    BACKENDS,
    configs,
    st.dictionaries(texts, json_values, max_size=3),
    st.none() | finite,
)
plans = st.builds(
    replace,
    st.builds(plan),
    branches=st.lists(branches, max_size=2).map(tuple),
    dropped=st.lists(st.builds(Dropped, texts, texts), max_size=3).map(tuple),
    warnings=st.lists(texts, max_size=3).map(tuple),
    model=st.builds(ModelFacts, texts, texts, st.booleans(), st.integers(), st.integers()),
    hardware=st.builds(HardwareFacts, texts, st.integers(), st.integers()),
    capacity=st.dictionaries(
        st.builds(CapacityKey, BACKENDS, st.sampled_from(ROLES), SHAPES, st.integers()),
        st.integers() | texts,
        max_size=4,
    ),
    predictors=predictors,
    backend_versions=st.dictionaries(BACKENDS, texts),
    seeds=st.dictionaries(
        st.just(DISAGG),
        st.lists(
            selections,
            max_size=2,
        ).map(tuple),
    ),
    digest=texts,
    baseline=st.none() | selections,
)
CONFIG = SmartSearchConfig.model_validate({"search_space": SMALL, "workload": CLOSED_LOOP})


def sent(config: SmartSearchConfig, made: SweepPlan) -> SweepPlan:
    return decode_plan(config, json.loads(json.dumps(encode_plan(made))))


def same(one: object, other: object) -> bool:
    """Whether they are equal and look alike, as 1 and 1.0 do not."""
    return one == other and repr(one) == repr(other)


@settings(deadline=None)
@given(plans)
def test_a_plan_is_the_same_after_it_was_sent(made: SweepPlan) -> None:
    again = sent(CONFIG, made)
    # A set has no order, so that its looks say nothing.
    for field in fields(SweepPlan):
        one, other = getattr(made, field.name), getattr(again, field.name)
        assert one == other if field.name == "branches" else same(one, other), field.name
    for before, after in zip(made.branches, again.branches, strict=True):
        assert type(before.pool) is type(after.pool)
        assert same(
            (before.backend, before.knobs, before.kv_load),
            (after.backend, after.knobs, after.kv_load),
        )


@pytest.mark.parametrize("path", sorted(Path("examples").glob("*.yaml")), ids=str)
def test_a_request_is_the_same_after_it_was_sent(path: Path) -> None:
    config = load_config(path)
    trace = TraceLoad(path="/t", sha256="0" * 64, size_bytes=1, requests=2, total_tokens=3)
    for load in (None, trace):
        again = decode_request(encode_request(PlanRequest(config, load)))
        assert same(again.config, config)
        assert again.config.model_fields_set == config.model_fields_set
        assert again.config.search_space.model_fields_set == config.search_space.model_fields_set
        assert again.trace == load


def test_the_plan_of_what_was_left_open_or_is_ruled_out() -> None:
    document: dict[str, Any] = {
        "search_space": {
            **SMALL,
            "planner_scaling_policy": ["disabled", "hybrid_180_5"],
            "deployment_mode": ["agg", "disagg"],
            "gpu_budget": 16,
        },
        "workload": CLOSED_LOOP,
        "sweep": {"max_rounds": 1},
    }
    config = SmartSearchConfig.model_validate(document)
    made = plan(document["search_space"], FakeEngine(is_moe=True), sweep={"max_rounds": 1})
    assert made.config != config
    assert made.seeds
    again = sent(config, made)
    assert again == made
    assert [b.parameters for b in again.branches] == [b.parameters for b in made.branches]


def test_the_largest_pools_are_sent_as_little() -> None:
    shapes = {role: set(enumerate_shapes(is_moe=True, gpu_budget=1152)) for role in ROLES}
    pool = enumerate_pool(ROLES, {"vllm": shapes, "sglang": shapes}, gpu_budget=1152)
    made = plan()
    branch = replace(made.branches[0], pool=pool, gpu_budget=1152)
    assert len(pool) > 10_000_000
    assert len(json.dumps(encode_plan(replace(made, branches=(branch,))))) < 100_000


def test_a_configuration_with_nothing_left_is_refused_here_as_well() -> None:
    made = plan()
    hopeless = CONFIG.model_copy(
        update={
            "search_space": CONFIG.search_space.model_copy(
                update={"planner_scaling_policy": ["throughput_180_5"]}
            )
        }
    )
    with pytest.raises(InputError, match="none of the listed policies is left"):
        decode_plan(hopeless, encode_plan(made))
