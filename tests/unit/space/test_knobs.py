"""Which knobs a branch searches, and what the study sees of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from pydantic import JsonValue

from schemas.config import SmartSearchConfig
from schemas.search_space import Backend
from spica_async.space.knobs import (
    Knob,
    active_knobs,
    enables,
    engine_knob_names,
    planner_effect,
)
from spica_async.space.parameters import CategoricalParameter, DiscreteParameter

WEIGHTS = {"overlap_score_credit", "prefill_load_scale", "router_temperature"}
OFFLOAD = {"host_cache_hit_weight", "disk_cache_hit_weight"}
ENGINE = {
    "agg": {"agg_max_num_batched_tokens", "agg_max_num_seqs"},
    "disagg": {
        *("prefill_max_num_batched_tokens", "prefill_max_num_seqs"),
        *("decode_max_num_batched_tokens", "decode_max_num_seqs"),
    },
}


def policy(*loops: str, throughput: int = 180, load: int = 5) -> dict[str, Any]:
    """A policy written out, with an interval for either loop whether it runs or not."""
    return {
        "enable_throughput_scaling": "throughput" in loops,
        "enable_load_scaling": "load" in loops,
        "throughput_adjustment_interval_seconds": throughput,
        "load_adjustment_interval_seconds": load,
    }


@pytest.mark.parametrize("mode", ["agg", "disagg"])
def test_a_branch_has_the_engine_knobs_of_its_roles(mode: Any) -> None:
    assert set(engine_knob_names(mode)) == ENGINE[mode]


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        ({}, set()),
        ({"router_mode": ["kv_router"]}, WEIGHTS),
        ({"router_mode": ["round_robin", "kv_router"]}, WEIGHTS),
        (
            {"router_mode": ["kv_router"], "num_g2_blocks": 1, "kv_bytes_per_token": 8},
            WEIGHTS | OFFLOAD,
        ),
        ({"num_g2_blocks": 1, "kv_bytes_per_token": 8}, set()),
        (
            {"planner_scaling_policy": ["load_180_5"]},
            {"planner_load_sensitivity", "planner_fpm_sampling"},
        ),
        (
            {"planner_scaling_policy": ["disabled", "throughput_600_5"]},
            {"planner_load_sensitivity", "planner_fpm_sampling"},
        ),
        (
            {"planner_scaling_policy": ["hybrid_180_5"]},
            {"planner_load_sensitivity", "planner_fpm_sampling"},
        ),
        (
            {"planner_scaling_policy": [policy("load", throughput=60)]},
            {"planner_load_sensitivity", "planner_fpm_sampling"},
        ),
        ({"planner_scaling_policy": ["disabled", policy(throughput=60)]}, set()),
    ],
    ids=lambda value: str(sorted(value)) if isinstance(value, set) else str(value),
)
def test_a_knob_is_in_the_study_only_where_it_can_matter(
    make_config: Callable[..., SmartSearchConfig],
    space: dict[str, Any],
    expected: set[str],
) -> None:
    searched = make_config(space).search_space
    for mode, engine in ENGINE.items():
        knobs, unheard = active_knobs(searched, mode, {"vllm": {}})  # type: ignore[arg-type]  # the keys are modes
        always = {*engine, "router_mode", "planner_scaling_policy"}
        assert {knob.name for knob in knobs} == always | expected
        assert all(knob.entries == tuple(getattr(searched, knob.name)) for knob in knobs)
        assert unheard == {}


@pytest.mark.parametrize(
    ("ignored", "leaves"),
    [
        ({"vllm": {}, "sglang": {}}, False),
        ({"vllm": {"agg_max_num_seqs": "first"}, "sglang": {}}, False),
        (
            {"vllm": {"agg_max_num_seqs": "first"}, "sglang": {"agg_max_num_seqs": "second"}},
            True,
        ),
        # What no study has anyway is not missed.
        ({"vllm": {"agg_block_size": "first"}, "sglang": {"agg_block_size": "second"}}, False),
    ],
)
def test_a_knob_that_every_backend_ignores_leaves_with_its_reason(
    make_config: Callable[..., SmartSearchConfig],
    ignored: Mapping[Backend, Mapping[str, str]],
    leaves: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    knobs, unheard = active_knobs(make_config().search_space, "agg", ignored)
    assert ("agg_max_num_seqs" not in {knob.name for knob in knobs}) is leaves
    assert unheard == ({"agg_max_num_seqs": "first"} if leaves else {})


@pytest.mark.parametrize(
    ("policy", "throughput", "load"),
    [
        ("disabled", False, False),
        ("throughput_180_5", True, False),
        ("load_180_10", False, True),
        ("hybrid_600_5", True, True),
        (policy("throughput", throughput=1, load=1), True, False),
        (policy("load", throughput=1, load=1), False, True),
    ],
    ids=str,
)
def test_a_policy_runs_its_loops(
    policy: Any,
    throughput: bool,  # noqa: FBT001  # a parameter of the test
    load: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    assert enables(policy, "throughput") is throughput
    assert enables(policy, "load") is load


def test_one_entry_is_no_parameter() -> None:
    assert Knob("router_mode", ("kv_router",)).parameter() is None


def test_numbers_are_discrete_and_limits_are_logarithmic() -> None:
    assert Knob("agg_max_num_seqs", (1024, 256)).parameter() == DiscreteParameter(
        "agg_max_num_seqs", (256, 1024), log=True
    )
    assert Knob("prefill_max_num_batched_tokens", (8192, 16384)).parameter() == (
        DiscreteParameter("prefill_max_num_batched_tokens", (8192, 16384), log=True)
    )
    assert Knob("prefill_load_scale", (32.0, 0.0, 4.0)).parameter() == DiscreteParameter(
        "prefill_load_scale", (0.0, 4.0, 32.0), log=False
    )
    assert Knob("overlap_score_credit", (0.5, 1.0)).parameter() == DiscreteParameter(
        "overlap_score_credit", (0.5, 1.0), log=False
    )


def test_names_and_mappings_are_categories_in_the_order_of_the_configuration() -> None:
    custom = policy("throughput", throughput=240)
    knob = Knob("planner_scaling_policy", ("load_180_5", custom, "disabled"))
    parameter = knob.parameter()
    assert isinstance(parameter, CategoricalParameter)
    first, label, last = parameter.values
    assert (first, last) == ("load_180_5", "disabled")
    assert [knob.entry(value) for value in parameter.values] == list(knob.entries)
    # The label depends on what the mapping holds, not on the order it was written in.
    reordered = Knob("planner_scaling_policy", (dict(reversed(custom.items())), "disabled"))
    found = reordered.parameter()
    assert isinstance(found, CategoricalParameter)
    assert found.values[0] == label


def test_a_number_is_the_entry_itself() -> None:
    assert Knob("agg_max_num_seqs", (256, 1024)).entry(1024) == 1024


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("load_180_5", policy("load"), True),
        ("load_180_5", policy("load", throughput=999), True),  # no loop has that interval
        ("load_180_5", "load_180_10", False),
        ("disabled", policy(throughput=1, load=2), True),
        ("throughput_180_5", policy("throughput", throughput=181), False),
        ("throughput_180_5", "hybrid_180_5", False),
        ("throughput_180_5", policy("throughput", load=6), False),
    ],
    ids=str,
)
def test_policies_that_do_the_same_are_the_same_however_they_are_written(
    one: Any,
    other: Any,
    same: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    effects = [planner_effect({"planner_scaling_policy": entry}) for entry in (one, other)]
    assert (effects[0] == effects[1]) is same


def test_composites_under_a_policy_are_part_of_what_it_does() -> None:
    written: dict[str, JsonValue] = {"max_num_fpm_samples": 64, "fpm_sample_bucket_size": 16}
    preset, mapping, small = (
        planner_effect({"planner_scaling_policy": "hybrid_180_5", "planner_fpm_sampling": entry})
        for entry in ("default", written, "small")
    )
    assert preset == mapping != small


def test_the_order_in_which_a_policy_is_written_changes_nothing() -> None:
    written = policy("throughput", throughput=240)
    assert planner_effect({"planner_scaling_policy": written}) == planner_effect(
        {"planner_scaling_policy": dict(reversed(written.items()))}
    )
