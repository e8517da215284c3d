"""What a study's proposal means, and how many distinct samples a branch has."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.config import SmartSearchConfig
from schemas.presets import COMPOSITE_PRESETS
from schemas.search_space import SEARCH_CHOICES
from spica_async.space.branch import BranchSpace, Selection
from spica_async.space.parameters import (
    CategoricalParameter,
    DiscreteParameter,
    FloatParameter,
    Parameter,
)
from spica_async.space.pool import RoleDeployment
from spica_async.space.sample import SampleContext, sample_key, unroll_sample
from spica_async.space.shapes import ParallelShape

SYNTHETIC = {"isl": 1000, "osl": 100, "num_request_ratio": 2.0}
LOAD = {"load_adjustment_interval_seconds": 5, "throughput_adjustment_interval_seconds": 180}
WRITTEN_OUT: dict[str, list[Any]] = {
    "planner_scaling_policy": [
        # As load_180_5; as that but for an interval of the loop that is off; static; of its own.
        {"enable_throughput_scaling": False, "enable_load_scaling": True, **LOAD},
        {
            "enable_throughput_scaling": False,
            "enable_load_scaling": True,
            **LOAD,
            "throughput_adjustment_interval_seconds": 600,
        },
        {"enable_throughput_scaling": False, "enable_load_scaling": False, **LOAD},
        {
            "enable_throughput_scaling": True,
            "enable_load_scaling": False,
            **LOAD,
            "load_adjustment_interval_seconds": 7,
        },
    ],
    "planner_fpm_sampling": [{"max_num_fpm_samples": 64, "fpm_sample_bucket_size": 16}],
    "planner_load_sensitivity": [
        {"load_scaling_down_sensitivity": 80, "load_min_observations": 5},
        {"load_scaling_down_sensitivity": 81, "load_min_observations": 5},
    ],
}
KNOBS = (
    *("agg_max_num_batched_tokens", "agg_max_num_seqs", "router_mode", "overlap_score_credit"),
    *("prefill_load_scale", "router_temperature", "host_cache_hit_weight"),
    *("disk_cache_hit_weight", "planner_scaling_policy", "planner_fpm_sampling"),
    "planner_load_sensitivity",
)


def entries_of(knob: str) -> list[Any]:
    if knob in SEARCH_CHOICES:
        return list(SEARCH_CHOICES[knob])
    return [*COMPOSITE_PRESETS[knob], *WRITTEN_OUT[knob]]


@st.composite
def search_spaces(draw: st.DrawFn) -> dict[str, Any]:
    """Routers, policies and a few other knobs with some of their entries; the rest is pinned."""
    chosen: dict[str, Any] = {}
    others = [knob for knob in KNOBS if knob not in ("router_mode", "planner_scaling_policy")]
    few = draw(st.lists(st.sampled_from(others), max_size=4, unique=True))
    for knob in ("router_mode", "planner_scaling_policy", *few):
        positions = st.integers(0, len(entries_of(knob)) - 1)
        some = draw(st.sets(positions, min_size=1, max_size=3))
        chosen[knob] = [entries_of(knob)[position] for position in sorted(some)]
    if draw(st.booleans()):
        chosen |= {"num_g2_blocks": 8, "kv_bytes_per_token": 1024}
    chosen["backend"] = draw(st.sampled_from([["vllm"], ["sglang", "vllm"]]))
    return chosen


def every_sample(context: SampleContext, space: BranchSpace) -> Iterator[str]:
    """The key of every combination of anything at all with anything, active or not."""
    searched = context.space
    for backend in searched.backend:
        # An ignored knob does nothing, whatever it is set to: any one value will do.
        names = [name for name in KNOBS if name not in space.ignored[backend]]
        if not searched.num_g2_blocks:
            names = [name for name in names if not name.endswith("_cache_hit_weight")]
        columns = [getattr(searched, name) for name in names]
        for index in space.pool.legal_indices(backend):
            for row in itertools.product(*columns):
                knobs = dict(zip(names, row, strict=True))
                selection = Selection(space.mode, backend, space.pool[int(index)], knobs)
                yield sample_key(unroll_sample(context, selection))


def values_of(parameter: Parameter) -> st.SearchStrategy[float | str]:
    if isinstance(parameter, FloatParameter):
        return st.floats(parameter.low, parameter.high)
    return st.sampled_from(parameter.values)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_enumeration_finds_every_distinct_sample_once(
    make_config: Callable[..., SmartSearchConfig],
    make_space: Callable[..., BranchSpace],
    make_context: Callable[..., SampleContext],
    data: st.DataObject,
) -> None:
    config = make_config(data.draw(search_spaces()))
    inert = data.draw(st.sampled_from([None, "agg_max_num_seqs", "overlap_score_credit"]))
    many = len(config.search_space.backend) > 1
    ignored = {"sglang": {inert: "a reason"}} if inert and many else {}
    space = make_space(config, sizes=(2, 4), ignored=ignored)
    context = make_context(config, space)
    expected = set(every_sample(context, space))
    count = space.distinct_selections
    assert count is not None
    keys = [sample_key(unroll_sample(context, space.selection(i))) for i in range(count)]
    assert len(set(keys)) == len(keys)
    assert set(keys) == expected
    with pytest.raises(IndexError):
        space.selection(count)
    # What a study proposes is one of them, whatever it proposes for the inert.
    for _ in range(5):
        assignment = {p.name: data.draw(values_of(p)) for p in space.parameters}
        selection, _ = space.select(assignment)
        assert sample_key(unroll_sample(context, selection)) in expected


@pytest.mark.parametrize(
    ("knobs", "count"),
    [
        # Round robin has no weights: one choice beside two times three.
        (
            {
                "router_mode": ["round_robin", "kv_router"],
                "overlap_score_credit": [0.0, 1.0],
                "router_temperature": [0.0, 0.5, 1.0],
            },
            1 + 6,
        ),
        # Without a planner its other composites are one choice, with one all of them count.
        (
            {
                "planner_scaling_policy": ["disabled", "load_180_5", "throughput_180_5"],
                "planner_load_sensitivity": ["aggressive", "default", "conservative"],
                "planner_fpm_sampling": ["small", "fine"],
            },
            1 + 6 + 6,
        ),
        # One and the same, written in several ways.
        (
            {
                "planner_scaling_policy": [
                    "load_180_5",
                    *WRITTEN_OUT["planner_scaling_policy"][:2],
                ],
                "planner_load_sensitivity": [
                    "default",
                    WRITTEN_OUT["planner_load_sensitivity"][0],
                ],
            },
            1,
        ),
        ({"agg_max_num_seqs": [256, 512], "agg_max_num_batched_tokens": [8192, 16384]}, 4),
    ],
)
def test_only_what_is_active_is_counted(
    make_config: Callable[..., SmartSearchConfig],
    make_space: Callable[..., BranchSpace],
    knobs: dict[str, Any],
    count: int,
) -> None:
    # Replicas of one and two make two configurations.
    assert make_space(make_config(knobs)).distinct_selections == 2 * count


def test_parameters_are_the_load_the_latent_shape_and_every_knob_with_a_choice(
    make_config: Callable[..., SmartSearchConfig], make_space: Callable[..., BranchSpace]
) -> None:
    config = make_config(
        {
            "backend": ["vllm", "sglang"],
            "agg_max_num_seqs": [256, 512],
            "router_mode": ["kv_router", "round_robin"],
            "router_temperature": [0.0, 1.0],
        },
        workload={**SYNTHETIC, "kv_load_ratio": [0.25, 0.75]},
        goal={"target": "pareto"},
    )
    assert make_space(config, sizes=(2, 4)).parameters == (
        FloatParameter("kv_load_ratio", 0.25, 0.75),
        FloatParameter("used_gpu_ratio", 0.5, 1.0, default=1.0),
        DiscreteParameter("agg_num_gpus_per_engine_target", (2, 4), log=True, default=2),
        CategoricalParameter("backend", ("vllm", "sglang")),
        DiscreteParameter("agg_max_num_seqs", (256, 512), log=True),
        CategoricalParameter("router_mode", ("kv_router", "round_robin")),
        DiscreteParameter("router_temperature", (0.0, 1.0)),
    )


def test_a_proposal_selects_the_projected_configuration_and_the_proposed_entries(
    make_config: Callable[..., SmartSearchConfig], make_space: Callable[..., BranchSpace]
) -> None:
    custom = WRITTEN_OUT["planner_scaling_policy"][3]
    config = make_config(
        {
            "backend": ["vllm", "sglang"],
            "agg_max_num_seqs": [256, 512],
            "planner_scaling_policy": ["disabled", custom],
        },
        workload={**SYNTHETIC, "kv_load_ratio": [0.0, 1.0]},
        goal={"target": "pareto"},
    )
    space = make_space(config, sizes=(2, 4))
    policy = next(p for p in space.parameters if p.name == "planner_scaling_policy")
    assert isinstance(policy, CategoricalParameter)
    selection, projection = space.select(
        {
            "kv_load_ratio": 0.375,
            "used_gpu_ratio": 1.0,
            "agg_num_gpus_per_engine_target": 4,
            "backend": "sglang",
            "agg_max_num_seqs": 512,
            "planner_scaling_policy": policy.values[1],
        }
    )
    assert selection.backend == "sglang"
    assert selection.config["agg"] == RoleDeployment(ParallelShape(4), 1)
    assert selection.kv_load_ratio == 0.375
    assert selection.knobs == {
        "agg_max_num_batched_tokens": 8192,
        "agg_max_num_seqs": 512,
        "router_mode": "round_robin",
        "planner_scaling_policy": custom,
        "planner_fpm_sampling": "default",
        "planner_load_sensitivity": "default",
    }
    assert projection.requested == {"used_gpu_ratio": 1.0, "agg_num_gpus_per_engine_target": 4}


def test_a_knob_that_one_backend_ignores_is_not_selected_for_it(
    make_config: Callable[..., SmartSearchConfig], make_space: Callable[..., BranchSpace]
) -> None:
    config = make_config({"backend": ["vllm", "sglang"], "agg_max_num_seqs": [256, 512]})
    space = make_space(config, ignored={"sglang": {"agg_max_num_seqs": "a reason"}})
    chosen: Mapping[str, Any] = {"agg_max_num_seqs": 512, "used_gpu_ratio": 0.5}
    for backend, expected in {"vllm": 512, "sglang": None}.items():
        selection, _ = space.select({**chosen, "backend": backend})
        assert selection.knobs.get("agg_max_num_seqs") == expected
    # One configuration for sglang, two for vllm, of two numbers of replicas.
    assert space.distinct_selections == 2 * (1 + 2)


def test_a_fixed_kv_load_is_selected_and_a_range_cannot_be_counted(
    make_config: Callable[..., SmartSearchConfig], make_space: Callable[..., BranchSpace]
) -> None:
    fixed = make_space(make_config(workload={**SYNTHETIC, "kv_load_ratio": 0.5}))
    assert fixed.distinct_selections == 2
    assert fixed.selection(0).kv_load_ratio == 0.5
    selection, _ = fixed.select({"used_gpu_ratio": 0.5})
    assert selection.kv_load_ratio == 0.5
    ranged = make_config(workload=SYNTHETIC, goal={"target": "pareto"})
    assert make_space(ranged).distinct_selections is None
    assert make_space(make_config()).selection(0).kv_load_ratio is None
