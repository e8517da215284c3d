"""Room in the KV cache, and the concurrency that a KV load stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.deployments import DENSE, PAIR

from schemas.config import SmartSearchConfig
from schemas.search_space import Backend, DeploymentMode
from spica_async.space.branch import BranchSpace, Selection
from spica_async.space.capacity import CapacityKey
from spica_async.space.sample import (
    ResolvedSample,
    SampleContext,
    resolve_kv_load,
    sample_key,
    unroll_sample,
)


@pytest.fixture
def resolve(
    make_config: Callable[..., SmartSearchConfig],
    make_space: Callable[..., BranchSpace],
    make_context: Callable[..., SampleContext],
) -> Callable[..., ResolvedSample]:
    """Resolve a selection where each role has the given KV tokens a rank."""

    def resolve_with(
        ratio: float | None,
        tokens: Mapping[str, int | str],
        *,
        space: Mapping[str, Any] | None = None,
        isl: int = 1000,
        osl: int = 101,
        longest: int = 4096,
    ) -> ResolvedSample:
        pair = "prefill" in tokens
        mode: DeploymentMode = "disagg" if pair else "agg"
        config = make_config({"deployment_mode": [mode], **(space or {})})
        parallel = PAIR if pair else DENSE
        capacity = {
            CapacityKey("vllm", role, deployment.shape, 8192): tokens[role]
            for role, deployment in parallel.roles
        }
        branch = make_space(config, sizes=(1,))
        context = make_context(
            config,
            branch,
            capacity=capacity,
            isl=isl,
            osl=osl,
            longest_sequence=longest,
            facts={"needs_wide_ep": False},
        )
        selection = Selection(mode, "vllm", parallel, {}, ratio)
        return resolve_kv_load(context, selection, unroll_sample(context, selection))

    return resolve_with


def test_a_kv_load_is_a_share_of_what_the_decoding_role_holds(
    resolve: Callable[..., ResolvedSample],
) -> None:
    # 10,015 tokens are 156 blocks of 64: 9,984. Three replicas: 29,952.
    # A request holds 1000 + floor(101 / 2) = 1050: 28 of them fit. Half of that is 14.
    agg = resolve(0.5, {"agg": 10_015})
    assert agg.no_kv_room is None
    assert agg.facts == {
        "needs_wide_ep": False,
        "agg_kv_capacity_tokens": 29_952,
        "kv_load_ratio": 0.5,
        "concurrency": 14,
        "kv_load_concurrency_capacity": 28,
        "kv_load_capacity_tokens": 29_952,
    }
    assert (agg.sample["concurrency"], agg.sample["kv_load_ratio"]) == (14, 0.5)
    # Decode alone counts, with its eight attention ranks: 5,056 * 8 = 40,448 tokens, 38 requests.
    disagg = resolve(0.3, {"prefill": 5000, "decode": 5100})
    assert disagg.facts == {
        "needs_wide_ep": False,
        "prefill_kv_capacity_tokens": 4992 * 2,
        "decode_kv_capacity_tokens": 40_448,
        "kv_load_ratio": 0.3,
        "concurrency": 11,
        "kv_load_concurrency_capacity": 38,
        "kv_load_capacity_tokens": 40_448,
    }


@pytest.mark.parametrize(
    ("ratio", "concurrency"),
    [(0.0, 1), (0.01, 1), (0.071, 1), (0.072, 2), (0.999, 27), (1.0, 28), (2.0, 56)],
)
def test_a_concurrency_is_rounded_down_and_at_least_one(
    resolve: Callable[..., ResolvedSample], ratio: float, concurrency: int
) -> None:
    assert resolve(ratio, {"agg": 10_015}).sample["concurrency"] == concurrency


@pytest.mark.parametrize(("osl", "capacity"), [(1, 29), (2, 29), (3, 29), (66, 28), (200, 27)])
def test_half_the_output_is_held_on_average(
    resolve: Callable[..., ResolvedSample], osl: int, capacity: int
) -> None:
    # 29,952 // (1000 + osl // 2)
    assert resolve(1.0, {"agg": 10_015}, osl=osl).facts["kv_load_concurrency_capacity"] == capacity


def test_blocks_are_whole(resolve: Callable[..., ResolvedSample]) -> None:
    for block, tokens in {64: 9984, 100: 10_000, 10_015: 10_015, 6000: 6000}.items():
        resolved = resolve(1.0, {"agg": 10_015}, space={"agg_block_size": block})
        assert resolved.facts["agg_kv_capacity_tokens"] == tokens * 3


def test_another_workload_has_capacities_and_no_concurrency(
    resolve: Callable[..., ResolvedSample],
) -> None:
    resolved = resolve(None, {"agg": 10_015})
    assert resolved.facts == {"needs_wide_ep": False, "agg_kv_capacity_tokens": 29_952}
    assert "concurrency" not in resolved.sample
    assert "kv_load_ratio" not in resolved.sample


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ({"agg": 4096}, "agg: 4096 KV tokens a rank hold no sequence of 4096 tokens"),
        ({"agg": "no KV budget"}, "agg: no KV budget"),
        (
            {"prefill": 4096, "decode": 9999},
            "prefill: 4096 KV tokens a rank hold no sequence of 4096 tokens",
        ),
        (
            {"prefill": 9999, "decode": 10},
            "decode: 10 KV tokens a rank hold no sequence of 4096 tokens",
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("ratio", [None, 0.5])
def test_a_role_without_room_makes_the_sample_infeasible(
    resolve: Callable[..., ResolvedSample],
    tokens: dict[str, int | str],
    reason: str,
    ratio: float | None,
) -> None:
    resolved = resolve(ratio, tokens)
    assert resolved.no_kv_room == reason
    # Nothing of the load is known, so the load makes no other sample of it.
    assert sample_key(resolved.sample) == sample_key(resolve(0.75, tokens).sample)


def test_one_token_more_than_the_longest_sequence_is_room(
    resolve: Callable[..., ResolvedSample],
) -> None:
    assert resolve(0.5, {"prefill": 4097, "decode": 4097}).no_kv_room is None


@pytest.mark.parametrize(("isl", "no_room"), [(29_952, False), (29_953, True)])
def test_a_cache_that_holds_not_one_request_is_infeasible(
    resolve: Callable[..., ResolvedSample],
    isl: int,
    no_room: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    resolved = resolve(1.0, {"agg": 10_015}, isl=isl, osl=1)
    assert resolved.no_kv_room == ("the KV cache holds not one request" if no_room else None)
    assert resolved.facts["kv_load_concurrency_capacity"] == (0 if no_room else 1)


def test_the_version_whose_measurements_time_its_steps_is_a_fact(
    make_config: Callable[..., SmartSearchConfig],
    make_space: Callable[..., BranchSpace],
    make_context: Callable[..., SampleContext],
) -> None:
    config = make_config({"backend": ["sglang", "vllm"]})
    branch = make_space(config)
    context = make_context(config, branch)
    selection = Selection("agg", "vllm", branch.pool[0], {})

    def version_with(versions: Mapping[Backend, str]) -> object:
        changed = replace(context, backend_versions=versions)
        resolved = resolve_kv_load(changed, selection, unroll_sample(changed, selection))
        return resolved.facts.get("backend_version")

    assert version_with({"sglang": "0.5", "vllm": "0.11"}) == "0.11"
    assert version_with({"sglang": "0.5"}) is None


def test_equal_concurrencies_are_one_sample_whatever_the_ratios(
    resolve: Callable[..., ResolvedSample],
) -> None:
    one, same, other = (resolve(ratio, {"agg": 10_015}).sample for ratio in (0.5, 0.51, 0.54))
    assert one["kv_load_ratio"] != same["kv_load_ratio"]
    assert sample_key(one) == sample_key(same) != sample_key(other)


def test_the_capacity_of_the_chosen_batch_limit_counts(
    make_config: Callable[..., SmartSearchConfig],
    make_space: Callable[..., BranchSpace],
    make_context: Callable[..., SampleContext],
) -> None:
    config = make_config({"agg_max_num_batched_tokens": [8192, 16384]})
    branch = make_space(config)
    context = make_context(config, branch)
    shape = branch.pool[0]["agg"].shape
    table = {**context.capacity, CapacityKey("vllm", "agg", shape, 16384): 8192}
    context = replace(context, capacity=table)
    for batched, has_room in {8192: True, 16384: False}.items():
        knobs = {"agg_max_num_batched_tokens": batched}
        selection = Selection("agg", "vllm", branch.pool[0], knobs)
        resolved = resolve_kv_load(context, selection, unroll_sample(context, selection))
        assert (resolved.no_kv_room is None) is has_room
