"""Pools of parallel configurations, against enumerations that are written out by hand."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.search_space import ROLES, Backend, DeploymentMode, Role
from spica_async.space.capacity import rejection
from spica_async.space.pool import (
    ParallelConfig,
    ParallelPool,
    RoleDeployment,
    menu_pool,
)
from spica_async.space.product import PoolTooLargeError, enumerate_pool
from spica_async.space.shapes import ParallelShape, enumerate_shapes

MOE_SHAPES = enumerate_shapes(is_moe=True, gpu_budget=8)
ShapesByBackend = Mapping[Backend, Mapping[Role, AbstractSet[ParallelShape]]]
modes = st.sampled_from(get_args(DeploymentMode))


@st.composite
def shapes_by_backend(draw: st.DrawFn, roles: Sequence[Role]) -> ShapesByBackend:
    backends = draw(st.lists(st.sampled_from(get_args(Backend)), min_size=1, unique=True))
    some = st.sets(st.sampled_from(MOE_SHAPES), max_size=4)
    return {backend: {role: draw(some) for role in roles} for backend in backends}


def brute_force(
    roles: Sequence[Role], shapes: ShapesByBackend, *, low: int, high: int
) -> dict[ParallelConfig, set[Backend]]:
    """Every combination of a shape and a replica count per role, kept if it is in the limits."""
    every = [
        RoleDeployment(shape, replicas) for shape in MOE_SHAPES for replicas in range(1, high + 1)
    ]
    found: dict[ParallelConfig, set[Backend]] = {}
    for row in itertools.product(every, repeat=len(roles)):
        gpus = sum(one.shape.tp * one.shape.attention_dp * one.replicas for one in row)
        if not low <= gpus <= high:
            continue
        legal = {
            backend
            for backend, by_role in shapes.items()
            if all(one.shape in by_role[role] for role, one in zip(roles, row, strict=True))
        }
        if legal:
            found[ParallelConfig(tuple(zip(roles, row, strict=True)))] = legal
    return found


def contents(pool: ParallelPool) -> list[tuple[ParallelConfig, set[Backend]]]:
    legal = {backend: set(pool.legal_indices(backend).tolist()) for backend in pool.backends}
    return [
        (pool[index], {backend for backend, positions in legal.items() if index in positions})
        for index in range(len(pool))
    ]


def order(config: ParallelConfig) -> list[tuple[int, ...]]:
    return [
        (d.shape.tp, d.shape.attention_dp, d.shape.moe_tp, d.shape.moe_ep, d.replicas)
        for _, d in config.roles
    ]


@settings(deadline=None)
@given(st.data())
def test_a_pool_holds_what_is_within_the_budget_and_nothing_else(data: st.DataObject) -> None:
    roles = ROLES[data.draw(modes)]
    shapes = data.draw(shapes_by_backend(roles))
    # Two roles of many replicas make a long enumeration by hand.
    high = data.draw(st.integers(1, 12 if len(roles) == 1 else 5))
    low = data.draw(st.integers(1, high))
    pool = enumerate_pool(roles, shapes, gpu_budget=high, min_gpu_budget=low)
    expected = brute_force(roles, shapes, low=low, high=high)
    found = contents(pool)
    assert dict(found) == expected
    assert [config for config, _ in found] == sorted(expected, key=order)
    assert pool.used_gpus.tolist() == [config.used_gpus for config, _ in found]
    assert all(low <= used <= high for used in pool.used_gpus)
    assert pool.backends == tuple(shapes)


@settings(deadline=None)
@given(st.data())
def test_a_menu_holds_what_was_listed_with_its_backends(data: st.DataObject) -> None:
    roles = ROLES[data.draw(modes)]
    deployments = st.builds(RoleDeployment, st.sampled_from(MOE_SHAPES), st.integers(1, 3))
    configs = st.tuples(*(deployments for _ in roles)).map(
        lambda row: ParallelConfig(tuple(zip(roles, row, strict=True)))
    )
    legal = st.sets(st.sampled_from(get_args(Backend)), min_size=1)
    menu = data.draw(st.dictionaries(configs, legal, min_size=1, max_size=6))
    found = contents(menu_pool(roles, menu))
    assert dict(found) == menu
    assert [config for config, _ in found] == sorted(menu, key=order)


def test_both_roles_share_the_limits() -> None:
    single: set[ParallelShape] = {ParallelShape(4)}
    pool = enumerate_pool(
        ROLES["disagg"],
        {"vllm": {"prefill": single, "decode": single}},
        gpu_budget=12,
        min_gpu_budget=12,
    )
    assert [str(config) for config, _ in contents(pool)] == [
        "prefill 1 x (tp 4), decode 2 x (tp 4)",
        "prefill 2 x (tp 4), decode 1 x (tp 4)",
    ]


def test_a_backend_without_shapes_for_a_role_has_nothing_in_the_pool() -> None:
    both: dict[Role, set[ParallelShape]] = {
        "prefill": {ParallelShape(1)},
        "decode": {ParallelShape(2)},
    }
    half: dict[Role, set[ParallelShape]] = {**both, "decode": set()}
    pool = enumerate_pool(ROLES["disagg"], {"vllm": half, "sglang": both}, gpu_budget=3)
    assert contents(pool) == [
        (
            ParallelConfig(
                (
                    ("prefill", RoleDeployment(ParallelShape(1), 1)),
                    ("decode", RoleDeployment(ParallelShape(2), 1)),
                )
            ),
            {"sglang"},
        )
    ]
    empty = enumerate_pool(ROLES["disagg"], {"vllm": half}, gpu_budget=64)
    assert len(empty) == 0
    assert not len(empty.used_gpus)


def test_a_pool_that_cannot_be_held_is_refused_before_it_is_made() -> None:
    single: set[ParallelShape] = {ParallelShape(1)}
    by_backend: ShapesByBackend = {"vllm": {"prefill": single, "decode": single}}
    with pytest.raises(PoolTooLargeError, match="36,000,000 combinations, more than 30,000,000"):
        enumerate_pool(ROLES["disagg"], by_backend, gpu_budget=6000)
    # One role alone makes no combinations.
    pool = enumerate_pool(ROLES["agg"], {"vllm": {"agg": single}}, gpu_budget=6000)
    assert len(pool) == 6000


@pytest.mark.parametrize(
    ("capacity", "expected"),
    [
        (8193, None),
        (8192, "8192 KV tokens a rank hold no sequence of 8192 tokens"),
        (0, "0 KV tokens a rank hold no sequence of 8192 tokens"),
        ("no KV budget", "no KV budget"),
    ],
)
def test_a_worker_holds_more_than_the_longest_sequence(
    capacity: int | str, expected: str | None
) -> None:
    assert rejection(capacity, 8192) == expected
