"""The knobs of a search space: defaults, choices, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from schemas.config import SmartSearchConfig
from schemas.presets import COMPOSITE_PRESETS
from schemas.search_space import (
    ADMISSION_SCALARS,
    SEARCH_CHOICES,
    PinnedShape,
    SearchSpace,
)

REQUIRED: dict[str, Any] = {"model_name": "a/model", "hardware_sku": "some_gpu"}
AGG = {"deployment_mode": ["agg"]}
DISAGG = {"deployment_mode": ["disagg"]}
ZERO_UP = "input should be greater than or equal to 0"
ONE_UP = "input should be greater than or equal to 1"
POSITIVE = "input should be greater than 0"
WHOLE = "input should be a valid integer"
NUMBER = "input should be a valid number"
FINITE = "input should be a finite number"
NO_ADMISSION_CONTROL = (
    "a replay has no admission control, so a kv_router result would not hold; "
    "remove it or pin router_mode to [round_robin]"
)
NO_DECODE_CACHING = "decode workers receive their KV cache and never cache prefixes: false"


def test_the_smallest_configuration_takes_every_default(
    load_blocks: Callable[..., SmartSearchConfig],
) -> None:
    config = load_blocks()
    space = config.search_space.model_dump()
    for knob, choices in {**SEARCH_CHOICES, "backend": ("vllm",)}.items():
        assert space[knob] == list(choices), knob
    for knob, presets in COMPOSITE_PRESETS.items():
        assert space[knob] == list(presets), knob
    scalars: dict[str, Any] = {
        "gpu_budget": 32,
        "num_g2_blocks": 0,
        "parallel_configs": [],
        "no_admission_control": False,
        **{f"{role}_block_size": 64 for role in ("prefill", "decode", "agg")},
        **{f"{role}_gpu_memory_utilization": 0.9 for role in ("prefill", "decode", "agg")},
        "prefill_enable_prefix_caching": True,
        "decode_enable_prefix_caching": False,
        "agg_enable_prefix_caching": True,
        **dict.fromkeys(
            (
                *("min_gpu_budget", "min_endpoint", "context_length", "startup_time", "aic_nextn"),
                *("moe_backend", "kv_bytes_per_token", "offload_batch_size"),
                *("bandwidth_g1_to_g2_gbps", "bandwidth_g2_to_g1_gbps"),
                *("active_decode_blocks_threshold", "active_prefill_tokens_threshold"),
                "active_prefill_tokens_threshold_frac",
            )
        ),
    }
    lists = {*SEARCH_CHOICES, *COMPOSITE_PRESETS, *REQUIRED}
    assert {name: value for name, value in space.items() if name not in lists} == scalars
    assert config.goal.model_dump() == {
        "target": "throughput",
        "sla": None,
        "pareto_objectives": None,
        "robust": False,
    }
    assert config.sweep.model_dump() == {
        "max_rounds": 20,
        "parallel_evals": 16,
        "candidates_per_round": None,
        "random_seed": 1,
        "max_eval_seconds": None,
        "suggest_timeout_seconds": 180.0,
        "schedule": "continuous",
        "optimizer": {"profile": "fast", "max_memory_mb": 1200},
        "warm_start": True,
        "max_seconds": None,
        "patience": None,
        "min_improvement": 0.0,
    }
    assert config.sweep.per_round == 16


def test_the_choices_are_those_of_the_reference() -> None:
    batched, seqs = (8192, 16384, 32768), (256, 512, 1024)
    assert dict(SEARCH_CHOICES) == {
        "deployment_mode": ("disagg", "agg"),
        "backend": ("vllm", "sglang", "trtllm"),
        "prefill_max_num_batched_tokens": batched,
        "prefill_max_num_seqs": tuple(2**power for power in range(9)),
        "decode_max_num_batched_tokens": (8192,),
        "decode_max_num_seqs": seqs,
        "agg_max_num_batched_tokens": batched,
        "agg_max_num_seqs": seqs,
        "router_mode": ("kv_router", "round_robin"),
        "overlap_score_credit": (0.0, 0.5, 1.0),
        "prefill_load_scale": (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
        "router_temperature": (0.0, 0.2, 0.5, 1.0),
        "host_cache_hit_weight": (0.5, 0.75, 1.0),
        "disk_cache_hit_weight": (0.0, 0.25, 0.5),
    }


def test_candidates_per_round_overrides_the_parallel_evaluations(
    load_blocks: Callable[..., SmartSearchConfig],
) -> None:
    assert load_blocks(sweep={"parallel_evals": 3}).sweep.per_round == 3
    assert load_blocks(sweep={"parallel_evals": 3, "candidates_per_round": 5}).sweep.per_round == 5


@pytest.mark.parametrize("knob", SEARCH_CHOICES)
def test_every_list_knob_takes_each_of_its_choices_alone(
    load_blocks: Callable[..., SmartSearchConfig], knob: str
) -> None:
    for choice in SEARCH_CHOICES[knob]:
        assert getattr(load_blocks(space={knob: [choice]}).search_space, knob) == [choice]


@pytest.mark.parametrize("knob", SEARCH_CHOICES)
@pytest.mark.parametrize("value", [[], None, "vllm", 8192, {"a": 1}], ids=str)
def test_a_list_knob_is_a_list_with_an_entry(
    problem_of: Callable[..., str], knob: str, value: object
) -> None:
    choices = ", ".join(map(str, SEARCH_CHOICES[knob]))
    found = problem_of(space={knob: value})
    assert found == f"search_space.{knob}: a list of one or more of {choices}"


@pytest.mark.parametrize("knob", SEARCH_CHOICES)
@pytest.mark.parametrize("entry", [True, math.nan, -1, "vlm", None, ["vllm"], 3], ids=str)
def test_a_list_knob_takes_its_choices_only(
    problem_of: Callable[..., str], knob: str, entry: object
) -> None:
    choices = ", ".join(map(str, SEARCH_CHOICES[knob]))
    found = problem_of(space={knob: [SEARCH_CHOICES[knob][0], entry]})
    assert found == f"search_space.{knob}: {entry!r} is not a choice; use {choices}"


@pytest.mark.parametrize("value", [0.5, 7, -1, True, "none", [1]], ids=str)
@pytest.mark.parametrize("name", ADMISSION_SCALARS)
@pytest.mark.parametrize("modes", [{}, {"router_mode": ["round_robin", "kv_router"]}], ids=str)
def test_admission_has_one_reason_under_the_kv_router_whatever_its_value(
    problem_of: Callable[..., str], name: str, modes: dict[str, Any], value: object
) -> None:
    found = problem_of(space={**modes, name: value})
    assert found == f"search_space.{name}: {NO_ADMISSION_CONTROL}"


COUNTS = ("gpu_budget", "min_gpu_budget", "min_endpoint", "context_length", "agg_block_size")
FRACTIONS = tuple(f"{role}_gpu_memory_utilization" for role in ("prefill", "decode", "agg"))


@pytest.mark.parametrize(
    ("block", "field", "value", "expected"),
    [
        *(("space", name, 0, f"{POSITIVE}, not 0") for name in COUNTS),
        *(("space", name, -3, f"{POSITIVE}, not -3") for name in COUNTS),
        *(("space", name, True, f"{WHOLE}, not True") for name in COUNTS),
        *(("space", name, 2.5, f"{WHOLE}, not 2.5") for name in COUNTS),
        *(("space", name, math.inf, f"{WHOLE}, not inf") for name in COUNTS),
        *(("space", name, "8", f"{WHOLE}, not '8'") for name in COUNTS),
        *(("space", name, 0.0, f"{POSITIVE}, not 0.0") for name in FRACTIONS),
        *(
            ("space", name, 1.01, "input should be less than or equal to 1, not 1.01")
            for name in FRACTIONS
        ),
        *(("space", name, math.nan, f"{FINITE}, not nan") for name in FRACTIONS),
        *(("space", name, True, f"{NUMBER}, not True") for name in FRACTIONS),
        ("space", "startup_time", -0.5, f"{ZERO_UP}, not -0.5"),
        ("space", "startup_time", math.inf, f"{FINITE}, not inf"),
        ("space", "aic_nextn", -1, f"{ZERO_UP}, not -1"),
        ("space", "num_g2_blocks", -1, f"{ZERO_UP}, not -1"),
        ("space", "moe_backend", "ep", "input should be 'wideep', 'deepep_moe' or 'megamoe', "),
        ("space", "model_name", "", "string should have at least 1 character, not ''"),
        ("space", "agg_enable_prefix_caching", 1, "input should be a valid boolean, not 1"),
        ("space", "parallel_configs", {"tp": 2}, "input should be a valid list, not {'tp': 2}"),
        ("sweep", "max_rounds", 0, f"{ONE_UP}, not 0"),
        ("sweep", "max_rounds", True, f"{WHOLE}, not True"),
        ("sweep", "parallel_evals", 0, f"{ONE_UP}, not 0"),
        ("sweep", "candidates_per_round", 0, f"{ONE_UP}, not 0"),
        ("sweep", "random_seed", -1, f"{ZERO_UP}, not -1"),
        ("sweep", "random_seed", 2**31, "input should be less than 2147483648, not 2147483648"),
        ("sweep", "max_eval_seconds", 0, f"{POSITIVE}, not 0"),
        ("sweep", "max_eval_seconds", math.nan, f"{FINITE}, not nan"),
        ("sweep", "suggest_timeout_seconds", math.inf, f"{FINITE}, not inf"),
        ("sweep", "suggest_timeout_seconds", 0, f"{POSITIVE}, not 0"),
    ],
)
def test_a_number_is_in_its_range_and_nothing_is_coerced(
    problem_of: Callable[..., str],
    block: str,
    field: str,
    value: object,
    expected: str,
) -> None:
    found = problem_of(**{block: {field: value}})
    label = {"space": "search_space"}.get(block, block)
    assert found.startswith(f"{label}.{field}: {expected}")


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (
            {"gpu_budget": 8, "min_gpu_budget": 9},
            "min_gpu_budget: 9 is over gpu_budget 8",
        ),
        (
            {"parallel_configs": [{"tp": 2}]},
            "deployment_mode: list exactly one mode (agg or disagg) with parallel_configs",
        ),
        (
            {**DISAGG, "parallel_configs": [{"tp": 2}]},
            "parallel_configs[0]: an entry for disagg is {prefill: {...}, decode: {...}}",
        ),
        (
            {**AGG, "parallel_configs": [{"tp": 1}, {"prefill": {"tp": 1}, "decode": {"tp": 1}}]},
            "parallel_configs[1]: an entry for agg is one shape, {tp: ...}",
        ),
        (
            {**AGG, "parallel_configs": [4]},
            "parallel_configs[0]: a mapping, {tp: ...} or {prefill: {...}, decode: {...}}, not 4",
        ),
        (
            {**DISAGG, "parallel_configs": [{"prefill": {"tp": 1}}]},
            "parallel_configs[0].decode: required",
        ),
        (
            {**AGG, "parallel_configs": [{"replicas": 2}]},
            "parallel_configs[0].tp: required",
        ),
        (
            {**AGG, "parallel_configs": [{"tp": 2, "pp": 2}]},
            "parallel_configs[0].pp: pipeline parallelism is not searched: 1, not 2",
        ),
        (
            {**AGG, "parallel_configs": [{"tp": 2, "attention_dp": 3}]},
            (
                "parallel_configs[0].tp: tp * attention_dp is 6 GPUs a worker; it must be one of "
                "1, 2, 4, 8, 16"
            ),
        ),
        (
            {**AGG, "parallel_configs": [{"tp": 2, "replicas": 0}]},
            f"parallel_configs[0].replicas: {POSITIVE}, not 0",
        ),
        ({"num_g2_blocks": 1}, "kv_bytes_per_token: required once num_g2_blocks is over 0"),
        (
            {"decode_block_size": 32},
            "decode_block_size: must be 64 as prefill_block_size: blocks are handed over",
        ),
        (
            {"decode_enable_prefix_caching": True},
            f"decode_enable_prefix_caching: {NO_DECODE_CACHING}",
        ),
    ],
)
def test_fields_that_contradict_each_other_name_the_one_to_change(
    problem_of: Callable[..., str], space: dict[str, Any], expected: str
) -> None:
    assert problem_of(space=space) == f"search_space.{expected}"


@pytest.mark.parametrize(
    "space",
    [
        {"gpu_budget": 8, "min_gpu_budget": 8},
        {"router_mode": ["round_robin"], "active_decode_blocks_threshold": 0.5},
        {"router_mode": ["round_robin"], "active_prefill_tokens_threshold_frac": 64.0},
        {"num_g2_blocks": 0, "kv_bytes_per_token": 1024, "offload_batch_size": 2},
        {"backend": ["vllm", "vllm"], "agg_max_num_seqs": [256, 256, 512]},
        {"num_g2_blocks": 8, "kv_bytes_per_token": 1024, "offload_batch_size": 2},
        {"startup_time": 0, "aic_nextn": 0, "agg_gpu_memory_utilization": 1},
        {"decode_enable_prefix_caching": False},
        {**AGG, "decode_block_size": 32},
        {**AGG, "parallel_configs": [{"tp": size} for size in (1, 2, 4, 8, 16)]},
        {**AGG, "parallel_configs": [{"tp": 2, "attention_dp": 8, "moe_tp": 16, "pp": 1}]},
        {**DISAGG, "parallel_configs": [{"prefill": {"tp": 1}, "decode": {"tp": 2}}]},
    ],
    ids=str,
)
def test_limits_themselves_are_legal(
    load_blocks: Callable[..., SmartSearchConfig], space: dict[str, Any]
) -> None:
    config = load_blocks(space=space)
    assert config.search_space.model_fields_set == {*REQUIRED, *space}


def test_a_program_may_pin_shapes_that_are_already_built() -> None:
    shape = PinnedShape(tp=2)
    space = SearchSpace(
        model_name="a/model",
        hardware_sku="some_gpu",
        deployment_mode=["agg"],
        parallel_configs=[shape],
    )
    assert space.parallel_configs == [shape]


@pytest.mark.parametrize(
    ("name", "value", "is_set"),
    [
        ("agg_max_num_seqs", [256, 512, 1024], False),
        ("agg_max_num_seqs", [1024, 256, 512], False),
        ("agg_max_num_seqs", [512, 1024], True),
        ("router_mode", ["round_robin", "kv_router"], False),
        ("router_mode", ["kv_router"], True),
        ("planner_fpm_sampling", [*COMPOSITE_PRESETS["planner_fpm_sampling"]][::-1], False),
        (
            "planner_fpm_sampling",
            [
                *COMPOSITE_PRESETS["planner_fpm_sampling"],
                {"max_num_fpm_samples": 64, "fpm_sample_bucket_size": 16},
            ],
            True,
        ),
        ("parallel_configs", [], False),
        ("parallel_configs", [{"tp": 2}], True),
        ("gpu_budget", 32, False),
        ("gpu_budget", 31, True),
        ("startup_time", None, False),
        ("startup_time", 0.0, True),
        ("agg_enable_prefix_caching", True, False),
        ("agg_enable_prefix_caching", False, True),
    ],
    ids=str,
)
def test_a_setting_is_set_once_it_says_something_else_than_its_default(
    name: str,
    value: object,
    is_set: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    space = SearchSpace.model_validate({**REQUIRED, **AGG, name: value})
    assert space.is_set(name) is is_set


@pytest.mark.parametrize("knob", ["backend", "router_mode", "planner_fpm_sampling"])
def test_an_entry_of_any_length_leaves_the_problem_in_a_line(
    problem_of: Callable[..., str], knob: str
) -> None:
    found = problem_of(space={knob: ["x" * 100_000]})
    assert found.startswith(f"search_space.{knob}")
    assert len(found) < 1000
