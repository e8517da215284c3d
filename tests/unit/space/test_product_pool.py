"""Pools that are held as the shapes they are made of, against the same ones written out."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.search_space import ROLES, Backend, DeploymentMode
from spica_async.space.nearest import Nearest
from spica_async.space.parameters import Assignment, FloatParameter
from spica_async.space.pool import MenuPool, menu_pool
from spica_async.space.product import PoolTooLargeError, ProductPool, enumerate_pool
from spica_async.space.projection import ParallelConfigProjector
from spica_async.space.shapes import enumerate_shapes

SHAPES = enumerate_shapes(is_moe=True, gpu_budget=16)
BACKENDS: tuple[Backend, ...] = get_args(Backend)


@st.composite
def products(draw: st.DrawFn) -> ProductPool:
    roles = ROLES[draw(st.sampled_from(get_args(DeploymentMode)))]
    some = st.sets(st.sampled_from(SHAPES), min_size=1, max_size=4)
    shapes = {
        backend: {role: draw(some) for role in roles}
        for backend in draw(st.lists(st.sampled_from(BACKENDS), min_size=1, unique=True))
    }
    high = draw(st.integers(1, 40))
    low = draw(st.one_of(st.just(1), st.just(high), st.integers(1, high)))
    return enumerate_pool(roles, shapes, gpu_budget=high, min_gpu_budget=low)


def written_out(pool: ProductPool) -> MenuPool:
    """The same configurations as a menu, which is searched by looking at every one of them."""
    return menu_pool(
        pool.roles,
        {
            pool[row]: {b for b, legal in zip(pool.backends, pool.legal[row], strict=True) if legal}
            for row in range(len(pool))
        },
    )


@st.composite
def requests(draw: st.DrawFn, projector: ParallelConfigProjector) -> Assignment:
    request: Assignment = {}
    for parameter in projector.parameters:
        if isinstance(parameter, FloatParameter):
            request[parameter.name] = draw(st.floats(parameter.low, parameter.high))
        else:
            request[parameter.name] = draw(st.sampled_from(parameter.values))
    return request


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_it_is_projected_onto_as_if_every_configuration_were_looked_at(data: st.DataObject) -> None:
    pool = data.draw(products().filter(len))
    menu = written_out(pool)
    budget = pool.max_gpus
    quick = ParallelConfigProjector(pool, gpu_budget=budget)
    plain = ParallelConfigProjector(menu, gpu_budget=budget)
    assert quick.parameters == plain.parameters
    assert len(pool) == len(menu) == len(pool.indices) == len(pool.legal)
    for whole, blocks in ((menu.indices, menu.index_blocks()), (menu.legal, menu.legal_blocks())):
        np.testing.assert_array_equal(np.concatenate(list(blocks)), whole)
    for backend in menu.backends:
        assert pool.count(backend) == menu.count(backend) == len(pool.legal_indices(backend))
        request = data.draw(requests(quick))
        assert quick.project(request, backend) == plain.project(request, backend)
        # What a seed asks for: the features of some configuration.
        row = data.draw(st.integers(0, len(pool) - 1))
        features = quick.features(pool[row])
        asked = {p.name: features[p.name] for p in quick.parameters}
        assert quick.project(asked, backend) == plain.project(asked, backend)


@settings(deadline=None)
@given(products(), products())
def test_it_has_what_it_lists_and_nothing_else(pool: ProductPool, other: ProductPool) -> None:
    listed = {pool[row] for row in range(len(pool))}
    assert all(config in pool for config in listed)
    strangers = (other[row] for row in range(min(len(other), 50)))
    assert all((config in pool) == (config in listed) for config in strangers)
    assert "a configuration" not in pool


@settings(deadline=None)
@given(products())
def test_its_rows_come_in_blocks_as_they_come_at_once(pool: ProductPool) -> None:
    for whole, blocks in ((pool.indices, pool.index_blocks()), (pool.legal, pool.legal_blocks())):
        parts = list(blocks)
        assert b"".join(part.tobytes() for part in parts) == whole.tobytes()
        assert {part.dtype for part in parts} <= {whole.dtype}
    grid = [np.arange(len(options)) for options in pool.deployments]
    kept = [
        row
        for row in itertools.product(*grid)
        if pool.min_gpus
        <= sum(o[at].used_gpus for o, at in zip(pool.deployments, row, strict=True))
        <= pool.max_gpus
        and any(
            all(
                options[at].shape in runs[position]
                for position, (options, at) in enumerate(zip(pool.deployments, row, strict=True))
            )
            for runs in pool.shapes
        )
    ]
    assert [tuple(row) for row in pool.indices.tolist()] == [tuple(map(int, row)) for row in kept]


def test_millions_of_configurations_are_searched_without_being_made() -> None:
    shapes = {role: set(SHAPES) for role in ROLES["disagg"]}
    pool = enumerate_pool(ROLES["disagg"], {"vllm": shapes, "sglang": shapes}, gpu_budget=1152)
    assert len(pool) > 10_000_000
    projector = ParallelConfigProjector(pool, gpu_budget=1152)
    request: Assignment = {
        "used_gpu_ratio": 0.7301,
        "prefill_gpu_share": 0.3333,
        "prefill_num_gpus_per_engine_target": 4,
        "decode_num_gpus_per_engine_target": 8,
        "prefill_attention_mode": "dp",
        "decode_ffn_mode": "ep",
    }
    assert len(projector.parameters) == 8
    found = projector.project(request, "sglang").config
    assert found in pool
    assert found.used_gpus == pytest.approx(0.7301 * 1152, abs=8)
    # Neither its rows nor the deployments that it pairs.
    assert not {"indices", "legal", "deployments"} & vars(pool).keys()


@pytest.mark.parametrize("share", [(-1.0, 0.0), (1.0, 2.0)])
def test_no_configuration_leaves_a_role_without_gpus(share: tuple[float, float]) -> None:
    shapes = dict.fromkeys(ROLES["disagg"], frozenset(SHAPES[:1]))
    pool = enumerate_pool(ROLES["disagg"], {"vllm": shapes}, gpu_budget=8)
    (kind,) = pool.kinds
    none = pool.within(kind, (1.0, 8.0), share)
    assert none.shape == (0, 2)
    nearest = Nearest(pool.roles)
    nearest.consider(kind, none, np.empty(0))
    assert nearest.distance == math.inf


def test_a_role_of_a_million_replicas_is_refused() -> None:
    with pytest.raises(PoolTooLargeError, match="2,000,000 deployments of one role, more than 1,0"):
        enumerate_pool(ROLES["agg"], {"vllm": {"agg": {SHAPES[0]}}}, gpu_budget=2_000_000)
