"""From a latent request to the nearest legal configuration."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.search_space import ROLES, Backend, DeploymentMode
from spica_async.space.parameters import (
    Assignment,
    CategoricalParameter,
    DiscreteParameter,
    FloatParameter,
)
from spica_async.space.pool import ParallelConfig, ParallelPool, RoleDeployment, menu_pool
from spica_async.space.projection import ParallelConfigProjector
from spica_async.space.shapes import ParallelShape, enumerate_shapes

BUDGET = 32
MOE_SHAPES = enumerate_shapes(is_moe=True, gpu_budget=16)
MODE_FEATURES = ("attention_mode", "ffn_mode")


def tp(size: int) -> ParallelShape:
    return ParallelShape(size)


def agg(shape: ParallelShape, replicas: int) -> ParallelConfig:
    return ParallelConfig((("agg", RoleDeployment(shape, replicas)),))


def disagg(prefill: tuple[ParallelShape, int], decode: tuple[ParallelShape, int]) -> ParallelConfig:
    return ParallelConfig(
        (("prefill", RoleDeployment(*prefill)), ("decode", RoleDeployment(*decode)))
    )


def pool_of(*configs: ParallelConfig, **others: Sequence[ParallelConfig]) -> ParallelPool:
    """A menu of configurations for vllm, and of others for the backend of that name."""
    menu: dict[ParallelConfig, set[Backend]] = {config: {"vllm"} for config in configs}
    for backend in get_args(Backend):
        for config in others.get(backend, ()):
            menu.setdefault(config, set()).add(backend)
    mode: DeploymentMode = "agg" if len(next(iter(menu)).roles) == 1 else "disagg"
    return menu_pool(ROLES[mode], menu)


def project(pool: ParallelPool, request: Assignment, backend: Backend = "vllm") -> ParallelConfig:
    return ParallelConfigProjector(pool, gpu_budget=BUDGET).project(request, backend).config


# --- the same in plain Python, from the text that describes it ---


def features(config: ParallelConfig) -> dict[str, float | str]:
    total = sum(d.shape.tp * d.shape.attention_dp * d.replicas for _, d in config.roles)
    found: dict[str, float | str] = {"used_gpu_ratio": total / BUDGET}
    for role, deployment in config.roles:
        shape = deployment.shape
        size = shape.tp * shape.attention_dp
        if role == "prefill":
            found["prefill_gpu_share"] = size * deployment.replicas / total
        found[f"{role}_num_gpus_per_engine_target"] = size
        found[f"{role}_attention_mode"] = "dp" if shape.attention_dp > 1 else "tp"
        found[f"{role}_ffn_mode"] = "ep" if shape.moe_ep > 1 else "tp"
    return found


def transformed(name: str, value: float | str) -> float:
    return math.log2(float(value)) if name.endswith("_target") else float(value)


def distances(
    legal: Sequence[ParallelConfig], request: Mapping[str, float | str]
) -> dict[ParallelConfig, tuple[int, float]]:
    """Mode mismatches and squared normalised distance of each configuration."""
    known = {config: features(config) for config in legal}
    found = {}
    for config in legal:
        mismatches, distance = 0, 0.0
        for name, wanted in request.items():
            if name.endswith(MODE_FEATURES):
                mismatches += known[config][name] != wanted
                continue
            column = [transformed(name, known[other][name]) for other in legal]
            span = max(column) - min(column)
            if span > 0:
                delta = transformed(name, known[config][name]) - transformed(name, wanted)
                distance += (delta / span) ** 2
        found[config] = (mismatches, distance)
    return found


def order(config: ParallelConfig) -> list[tuple[ParallelShape, int]]:
    return [(deployment.shape, deployment.replicas) for _, deployment in config.roles]


@st.composite
def pools(draw: st.DrawFn) -> ParallelPool:
    roles = ROLES[draw(st.sampled_from(get_args(DeploymentMode)))]
    deployments = st.builds(RoleDeployment, st.sampled_from(MOE_SHAPES), st.integers(1, 4))
    configs = st.tuples(*(deployments for _ in roles)).map(
        lambda row: ParallelConfig(tuple(zip(roles, row, strict=True)))
    )
    legal = st.sets(st.sampled_from(get_args(Backend)), min_size=1)
    return menu_pool(roles, draw(st.dictionaries(configs, legal, min_size=1, max_size=12)))


@st.composite
def requests(draw: st.DrawFn, pool: ParallelPool) -> Assignment:
    """Values of the study's parameters, often those of some configuration."""
    request: Assignment = {}
    for parameter in ParallelConfigProjector(pool, gpu_budget=BUDGET).parameters:
        if isinstance(parameter, FloatParameter):
            exact = [float(features(pool[i])[parameter.name]) for i in range(len(pool))]
            anything = st.floats(parameter.low, parameter.high)
            request[parameter.name] = draw(st.sampled_from(exact) | anything)
        elif isinstance(parameter, DiscreteParameter):
            request[parameter.name] = draw(st.sampled_from(parameter.values))
        else:
            request[parameter.name] = draw(st.sampled_from(parameter.values))
    return request


@settings(deadline=None)
@given(st.data())
def test_the_projection_is_the_nearest_of_the_legal_with_the_fewest_wrong_modes(
    data: st.DataObject,
) -> None:
    pool = data.draw(pools())
    backend = data.draw(st.sampled_from(pool.backends))
    request = data.draw(requests(pool))
    projection = ParallelConfigProjector(pool, gpu_budget=BUDGET).project(request, backend)
    legal = [pool[int(index)] for index in pool.legal_indices(backend)]
    assert projection.config in legal
    judged = distances(legal, request)
    mismatches, distance = judged[projection.config]
    assert mismatches == min(wrong for wrong, _ in judged.values())
    rivals = {config: far for config, (wrong, far) in judged.items() if wrong == mismatches}
    assert distance <= min(rivals.values()) + 1e-9
    equals = [config for config, far in rivals.items() if abs(far - distance) < 1e-13]
    assert projection.config == min(equals, key=order)
    assert projection.distance == pytest.approx(distance)
    assert projection.mode_projected == (mismatches > 0)
    assert projection.requested == request
    known = features(projection.config)
    for name, value in projection.actual.items():
        assert value == known[name]


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_the_projection_depends_on_no_order_and_no_history(data: st.DataObject) -> None:
    pool = data.draw(pools())
    backend = data.draw(st.sampled_from(pool.backends))
    menu = [
        (pool[i], {b for b in pool.backends if i in pool.legal_indices(b)})
        for i in range(len(pool))
    ]
    asked = data.draw(st.lists(requests(pool), min_size=1, max_size=4))
    projector = ParallelConfigProjector(pool, gpu_budget=BUDGET)
    first = [projector.project(request, backend) for request in asked]
    again = [projector.project(request, backend) for request in reversed(asked)]
    other = ParallelConfigProjector(
        menu_pool(pool.roles, dict(data.draw(st.permutations(menu)))), gpu_budget=BUDGET
    )
    assert list(reversed(again)) == first
    assert [other.project(request, backend) for request in asked] == first


# --- the rules one by one ---


def worked_example() -> tuple[ParallelPool, ParallelConfig, ParallelConfig]:
    """A: prefill 2 x 4, decode 1 x 8 with EP. B: prefill 1 x 4, decode 3 x 8 with TP."""
    dense_prefill = tp(4)
    a = disagg((dense_prefill, 2), (ParallelShape(8, moe_ep=8), 1))
    b = disagg((dense_prefill, 1), (ParallelShape(8, moe_tp=8), 3))
    return pool_of(a, b), a, b


def test_the_worked_example_goes_to_the_configuration_with_the_asked_mode() -> None:
    pool, a, b = worked_example()
    projector = ParallelConfigProjector(pool, gpu_budget=BUDGET)
    numbers: Assignment = {
        "used_gpu_ratio": 0.5,
        "prefill_gpu_share": 0.5,
        "prefill_num_gpus_per_engine_target": 4,
        "decode_num_gpus_per_engine_target": 8,
    }
    to_b = projector.project({**numbers, "decode_ffn_mode": "tp"}, "vllm")
    assert to_b.config == b
    assert to_b.mode_projected is False
    assert to_b.actual["used_gpu_ratio"] == 0.875
    assert to_b.actual["prefill_gpu_share"] == pytest.approx(0.143, abs=5e-4)
    # Both numbers are a whole span away: 0.375 of 0.375 and 0.357 of 0.357.
    assert to_b.distance == pytest.approx(2.0)
    to_a = projector.project({**numbers, "decode_ffn_mode": "ep"}, "vllm")
    assert (to_a.config, to_a.distance) == (a, 0.0)


def test_a_projection_is_recorded_in_full() -> None:
    pool, _, _ = worked_example()
    request: Assignment = {"used_gpu_ratio": 0.5, "decode_ffn_mode": "tp"}
    projection = ParallelConfigProjector(pool, gpu_budget=BUDGET).project(request, "vllm")
    assert projection.as_metadata() == {
        "requested": {"used_gpu_ratio": 0.5, "decode_ffn_mode": "tp"},
        "actual": {
            "used_gpu_ratio": 0.875,
            "prefill_gpu_share": 4 / 28,
            "prefill_num_gpus_per_engine_target": 4,
            "prefill_attention_mode": "tp",
            "decode_num_gpus_per_engine_target": 8,
            "decode_attention_mode": "tp",
            "decode_ffn_mode": "tp",
        },
        "distance": 1.0,
        "mode_projected": False,
        "config": {
            "prefill": {"tp": 4, "attention_dp": 1, "moe_tp": 1, "moe_ep": 1, "replicas": 1},
            "decode": {"tp": 8, "attention_dp": 1, "moe_tp": 8, "moe_ep": 1, "replicas": 3},
        },
    }


def test_where_no_configuration_has_all_modes_the_least_wrong_one_is_taken() -> None:
    near = agg(ParallelShape(4, moe_tp=4), 2)
    far = agg(ParallelShape(1, attention_dp=16, moe_tp=16), 1)
    pool = pool_of(near, far, sglang=[agg(ParallelShape(1, attention_dp=4, moe_ep=4), 2)])
    request: Assignment = {
        "used_gpu_ratio": 0.25,
        "agg_num_gpus_per_engine_target": 4,
        "agg_attention_mode": "dp",
        "agg_ffn_mode": "ep",
    }
    projection = ParallelConfigProjector(pool, gpu_budget=BUDGET).project(request, "vllm")
    assert projection.config == far  # one mode wrong; the near one has two
    assert projection.mode_projected is True


def test_only_configurations_of_the_chosen_backend_are_taken() -> None:
    exact, other = agg(tp(2), 4), agg(tp(8), 4)
    pool = pool_of(other, sglang=[exact])
    request: Assignment = {"used_gpu_ratio": 0.25, "agg_num_gpus_per_engine_target": 2}
    backends: list[tuple[Backend, ParallelConfig]] = [("vllm", other), ("sglang", exact)]
    for backend, expected in backends:
        found = project(pool, request, backend)
        assert found == expected
    with pytest.raises(ValueError, match="no configuration of the pool is legal for trtllm"):
        project(pool, {}, "trtllm")


def test_numbers_are_scaled_by_the_span_of_the_backends_own_configurations() -> None:
    a, b, wide = agg(tp(1), 16), agg(tp(4), 2), agg(tp(16), 1)
    request: Assignment = {"used_gpu_ratio": 14 / BUDGET, "agg_num_gpus_per_engine_target": 4}
    # Engine sizes span 1 to 4 for vllm: there a has the wrong size by a whole span.
    assert project(pool_of(a, b, sglang=[wide]), request) == b
    # Over 1 to 16 it would be half a span, and the used GPUs would decide.
    assert project(pool_of(a, b, wide), request) == a


def test_sizes_are_compared_by_their_logarithms() -> None:
    small, large = agg(tp(1), 16), agg(tp(8), 2)
    # 4 is nearer to 1 than to 8 on a ruler, and nearer to 8 by doublings.
    assert project(pool_of(small, large), {"agg_num_gpus_per_engine_target": 4}) == large


def test_a_number_without_span_decides_nothing() -> None:
    a, b = agg(tp(2), 4), agg(tp(4), 2)
    pool = pool_of(a, b, sglang=[agg(tp(2), 16)])
    projection = ParallelConfigProjector(pool, gpu_budget=BUDGET).project(
        {"used_gpu_ratio": 1.0, "agg_num_gpus_per_engine_target": 4}, "vllm"
    )
    # Both use 8 GPUs: the ratio asked for is far from both and adds nothing.
    assert (projection.config, projection.distance) == (b, 0.0)


def test_of_equals_the_smallest_shape_and_then_the_fewest_replicas_are_taken() -> None:
    shapes = [ParallelShape(1, attention_dp=4), ParallelShape(4), ParallelShape(2, attention_dp=2)]
    for listed in itertools.permutations(shapes):
        pool = pool_of(*(agg(shape, 2) for shape in listed), sglang=[agg(tp(1), 1)])
        assert project(pool, {"used_gpu_ratio": 0.25}) == agg(min(shapes), 2)
    # As far from one as from the other.
    pool = pool_of(agg(tp(2), 1), agg(tp(2), 3))
    assert project(pool, {"used_gpu_ratio": 4 / BUDGET}) == agg(tp(2), 1)


def test_distances_that_differ_in_their_last_bits_are_equal() -> None:
    a = disagg((tp(1), 3), (tp(1), 7))
    b = disagg((tp(1), 7), (tp(1), 3))
    # Shares of 0.3 and 0.7 lie 0.2 off a half, to within rounding.
    assert 0.5 - 3 / 10 != 7 / 10 - 0.5
    assert project(pool_of(a, b), {"prefill_gpu_share": 0.5}) == a
    assert project(pool_of(b, a), {"prefill_gpu_share": 0.5}) == a


def test_one_configuration_needs_no_parameters() -> None:
    only = disagg((ParallelShape(4, moe_ep=4), 1), (ParallelShape(1, 8, 8), 2))
    projector = ParallelConfigProjector(pool_of(only), gpu_budget=BUDGET)
    assert projector.parameters == ()
    projection = projector.project({}, "vllm")
    assert (projection.config, projection.distance, projection.requested) == (only, 0.0, {})
    assert projection.actual["decode_attention_mode"] == "dp"


def test_an_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="the pool is empty"):
        ParallelConfigProjector(menu_pool(ROLES["agg"], {}), gpu_budget=BUDGET)


def test_a_dense_aggregate_pool_has_a_ratio_and_a_size() -> None:
    pool = pool_of(*(agg(tp(size), 1) for size in (1, 2, 4, 8, 16)))
    assert ParallelConfigProjector(pool, gpu_budget=20).parameters == (
        FloatParameter("used_gpu_ratio", 0.05, 0.8, default=0.8),
        DiscreteParameter("agg_num_gpus_per_engine_target", (1, 2, 4, 8, 16), log=True, default=4),
    )


def test_a_moe_disaggregated_pool_has_a_share_and_modes_for_each_role() -> None:
    pool = pool_of(
        disagg((ParallelShape(4, moe_ep=4), 2), (ParallelShape(1, 8, 8), 1)),
        disagg((ParallelShape(4, moe_tp=4), 6), (ParallelShape(8, moe_ep=8), 1)),
    )
    assert ParallelConfigProjector(pool, gpu_budget=BUDGET).parameters == (
        FloatParameter("used_gpu_ratio", 0.5, 1.0, default=1.0),
        FloatParameter("prefill_gpu_share", 0.5, 0.75, default=0.5),
        CategoricalParameter("prefill_ffn_mode", ("ep", "tp"), default="ep"),
        CategoricalParameter("decode_attention_mode", ("tp", "dp"), default="tp"),
        CategoricalParameter("decode_ffn_mode", ("ep", "tp"), default="ep"),
    )


@pytest.mark.parametrize(
    ("prefill_gpus", "low", "high", "default"),
    [((5, 7), 0.5, 0.7, 0.5), ((6, 7), 0.6, 0.7, 0.6), ((2, 3), 0.2, 0.3, 0.3)],
)
def test_the_share_starts_at_a_half_or_as_near_as_can_be(
    prefill_gpus: tuple[int, int], low: float, high: float, default: float
) -> None:
    pool = pool_of(*(disagg((tp(1), gpus), (tp(1), 10 - gpus)) for gpus in prefill_gpus))
    (share,) = ParallelConfigProjector(pool, gpu_budget=BUDGET).parameters
    assert share == FloatParameter("prefill_gpu_share", low, high, default=default)


@pytest.mark.parametrize(
    ("sizes", "centre"),
    [
        ((1, 2), 1),
        ((1, 2, 4), 2),
        ((1, 2, 4, 8), 2),
        ((1, 16), 1),
        ((2, 4, 16), 4),
        ((1, 8, 16), 8),
    ],
)
def test_a_size_starts_at_the_geometric_centre_and_a_tie_takes_the_smaller(
    sizes: tuple[int, ...], centre: int
) -> None:
    pool = pool_of(*(agg(tp(size), 16 // size) for size in sizes))
    (size,) = ParallelConfigProjector(pool, gpu_budget=BUDGET).parameters
    assert size == DiscreteParameter(
        "agg_num_gpus_per_engine_target", sizes, log=True, default=centre
    )


def test_a_single_gpu_of_a_moe_model_counts_as_tp_and_tp() -> None:
    pool = pool_of(agg(tp(1), 4), agg(ParallelShape(1, attention_dp=4, moe_ep=4), 1))
    projector = ParallelConfigProjector(pool, gpu_budget=BUDGET)
    assert projector.features(pool[0]) == {
        "used_gpu_ratio": 0.125,
        "agg_num_gpus_per_engine_target": 1,
        "agg_attention_mode": "tp",
        "agg_ffn_mode": "tp",
    }
