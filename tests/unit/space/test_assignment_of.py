"""A selection written as a proposal of the study, and read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config import SmartSearchConfig
from schemas.search_space import ROLES, Backend, DeploymentMode
from spica_async.optimizer.assignments import accept
from spica_async.space.branch import BranchSpace, Selection
from spica_async.space.parameters import FloatParameter, Parameter
from spica_async.space.pool import (
    ParallelConfig,
    ParallelPool,
    RoleDeployment,
    menu_pool,
)
from spica_async.space.product import enumerate_pool
from spica_async.space.shapes import ParallelShape, enumerate_shapes

BACKENDS: tuple[Backend, ...] = ("vllm", "sglang")
# Two of them mix modes, and have all the features of the one before.
SHAPES = (
    ParallelShape(1, 4, 1, 4),
    ParallelShape(2, 2, 1, 4),
    ParallelShape(2, 2, 2, 2),
    ParallelShape(4, 1, 4, 1),
    ParallelShape(2, 1, 1, 2),
    ParallelShape(1),
)
POLICY = {
    "enable_throughput_scaling": True,
    "enable_load_scaling": False,
    "throughput_adjustment_interval_seconds": 60,
    "load_adjustment_interval_seconds": 5,
}
KNOBS: dict[str, list[Any]] = {
    "agg_max_num_seqs": [1024, 256],
    "decode_max_num_seqs": [256, 512, 1024],
    "router_mode": ["kv_router", "round_robin"],
    "overlap_score_credit": [0.0, 0.5, 1.0],
    "router_temperature": [0.0, 1.0],
    "planner_scaling_policy": ["disabled", "load_180_5", POLICY],
    "planner_load_sensitivity": ["default", "aggressive"],
}


@st.composite
def menus(draw: st.DrawFn, mode: DeploymentMode) -> ParallelPool:
    deployments = st.builds(RoleDeployment, st.sampled_from(SHAPES), st.integers(1, 3))
    roles = ROLES[mode]
    rows = st.tuples(*[deployments] * len(roles)).map(
        lambda row: ParallelConfig(tuple(zip(roles, row, strict=True)))
    )
    backends = st.sets(st.sampled_from(BACKENDS), min_size=1)
    return menu_pool(roles, draw(st.dictionaries(rows, backends, min_size=1, max_size=12)))


@st.composite
def pools(draw: st.DrawFn, mode: DeploymentMode) -> ParallelPool:
    if draw(st.booleans()):
        return draw(menus(mode))
    budget = draw(st.integers(2, 9))
    shapes = enumerate_shapes(is_moe=draw(st.booleans()), gpu_budget=budget)
    some = draw(st.sets(st.sampled_from(shapes[:3]), min_size=1))
    by_role = dict.fromkeys(ROLES[mode], some | {ParallelShape(1)})
    return enumerate_pool(ROLES[mode], dict.fromkeys(BACKENDS, by_role), gpu_budget=budget)


@st.composite
def spaces(
    draw: st.DrawFn,
    make_config: Callable[..., SmartSearchConfig],
    make_space: Callable[..., BranchSpace],
) -> BranchSpace:
    mode: DeploymentMode = draw(st.sampled_from(["agg", "disagg"]))
    pool = draw(pools(mode))
    knobs = draw(st.sets(st.sampled_from(sorted(KNOBS))))
    lengths = {"isl": 100, "osl": 10, "num_request_ratio": 1.0}
    load, goal = draw(
        st.sampled_from(
            [
                ({"concurrency": 4}, {}),
                ({"kv_load_ratio": 0.5}, {}),
                ({"kv_load_ratio": [0.1, 0.7]}, {"target": "pareto"}),
            ]
        )
    )
    config = make_config(
        {
            "deployment_mode": [mode],
            "backend": list(pool.backends),
            "gpu_budget": int(pool.used_gpus.max()),
            **{name: KNOBS[name] for name in knobs},
        },
        workload={**lengths, **cast("dict[str, Any]", load)},
        goal=goal,
    )
    inert = draw(st.sampled_from(["router_temperature", "agg_max_num_seqs"]))
    ignored = {"sglang": {inert: "a reason"}} if pool.backends == ("sglang", "vllm") else {}
    return make_space(config, pool=pool, ignored=ignored)


def values_of(parameter: Parameter) -> st.SearchStrategy[float | str]:
    if isinstance(parameter, FloatParameter):
        return st.floats(parameter.low, parameter.high)
    return st.sampled_from(parameter.values)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_what_a_proposal_selects_is_selected_again_by_its_own_assignment(
    make_config: Callable[..., SmartSearchConfig],
    make_space: Callable[..., BranchSpace],
    data: st.DataObject,
) -> None:
    space = data.draw(spaces(make_config, make_space))
    proposed = {p.name: data.draw(values_of(p)) for p in space.parameters}
    selection, _ = space.select(proposed)
    assignment = space.assignment_of(selection)
    assert list(assignment) == [parameter.name for parameter in space.parameters]
    # Exactly the values of the study, so that an optimizer takes them.
    assert accept(space.parameters, assignment) == assignment
    again, projection = space.select(assignment)
    assert again == selection
    assert projection.distance == 0
    assert not projection.mode_projected


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_every_selection_of_the_space_has_an_assignment(
    make_config: Callable[..., SmartSearchConfig],
    make_space: Callable[..., BranchSpace],
    data: st.DataObject,
) -> None:
    space = data.draw(spaces(make_config, make_space))
    count = space.distinct_selections
    if count is None:
        row = data.draw(st.integers(0, len(space.pool) - 1))
        backend = next(b for b in space.pool.backends if row in space.pool.legal_indices(b))
        selection = Selection(space.mode, backend, space.pool[row], {}, kv_load_ratio=0.1)
    else:
        selection = space.selection(data.draw(st.integers(0, count - 1)))
    assignment = space.assignment_of(selection)
    assert accept(space.parameters, assignment) == assignment
    again, projection = space.select(assignment)
    assert (again.mode, again.backend) == (selection.mode, selection.backend)
    assert again.kv_load_ratio == selection.kv_load_ratio
    assert again.knobs.items() >= selection.knobs.items()
    # A twin may stand in its place: one with the same features, and before it in the pool.
    at, stands_at = space.pool.index(selection.config), space.pool.index(again.config)
    assert stands_at <= at
    assert projection.actual == space.projector.features(again.config)


def test_what_a_selection_leaves_out_gets_the_value_to_try_first(
    make_config: Callable[..., SmartSearchConfig], make_space: Callable[..., BranchSpace]
) -> None:
    space = make_space(make_config({"agg_max_num_seqs": [256, 512, 1024], "gpu_budget": 2}))
    config = space.pool[0]
    chosen = Selection("agg", "vllm", config, {"agg_max_num_seqs": 1024})
    left_out = Selection("agg", "vllm", config, {})
    assert space.assignment_of(chosen) == {"agg_max_num_seqs": 1024}
    assert space.assignment_of(left_out) == {"agg_max_num_seqs": 512}


def test_a_configuration_of_another_pool_has_no_assignment(
    make_config: Callable[..., SmartSearchConfig], make_space: Callable[..., BranchSpace]
) -> None:
    config = make_config({"gpu_budget": 4})
    space, other = make_space(config, sizes=(2,)), make_space(config, sizes=(2, 4))
    strangers = [other.pool[index] for index in range(len(other.pool))]
    refused = []
    for stranger in strangers:
        selection = Selection("agg", "vllm", stranger, {})
        try:
            space.assignment_of(selection)
        except ValueError:
            refused.append(str(stranger))
    assert refused == ["agg 1 x (tp 4)"]
    with pytest.raises(ValueError, match="not in the pool: agg 1 x"):
        space.pool.index(other.pool[len(other.pool) - 1])
