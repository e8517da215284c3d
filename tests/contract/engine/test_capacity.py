"""Our one small interface to KV capacity against the two places where the engine keeps it."""

from __future__ import annotations

from typing import Any

import pytest
from support.engine_samples import GLM, MINIMAX, agg, disagg, minimax, shape

from schemas.messages import Sample
from schemas.search_space import Role
from spica_async.engine import runtime
from spica_async.engine.capability import LEAST_BLOCK_SIZE, MOST_SPECULATION
from spica_async.engine.capacity import kv_tokens_per_rank
from spica_async.engine.launch import normalized_engine
from spica_async.engine.refusals import ShapeRejectedError

BACKENDS = ["vllm", "sglang", "trtllm"]
DENSE = agg()
MOE = minimax(**shape(attention_dp=8, moe_ep=8))


def _estimated_tokens(sample: Sample) -> int:
    """What the core's own estimator says of an agg sample's rank."""
    moe: dict[str, Any] = {}
    if sample["is_moe"]:
        moe = {"moe_tp_size": sample["moe_tp"], "moe_ep_size": sample["moe_ep"]}
    estimate = runtime.load("aisimulate_core.sdk.memory.kv_cache").estimate_kv_cache(
        sample["model_name"],
        sample["hardware_sku"],
        sample["backend"],
        "current",
        max_num_tokens=sample["agg_max_num_batched_tokens"],
        max_batch_size=sample["agg_max_num_seqs"],
        memory_fraction_kind="of_free" if sample["backend"] == "trtllm" else "of_total",
        memory_fraction_value=sample["agg_gpu_memory_utilization"],
        tp_size=sample["tp"],
        attention_dp_size=sample["attention_dp"],
        **moe,
    )
    return int(estimate["total_kv_size_tokens"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sample", [DENSE, MOE], ids=["dense", "moe"])
def test_capacity_is_the_replay_s_blocks_and_the_core_s_estimate(
    sample: Sample, backend: str
) -> None:
    sample = {**sample, "backend": backend}
    tokens = kv_tokens_per_rank(sample, "agg")
    engine = normalized_engine(sample, "agg")["engine"]
    assert tokens == engine["num_gpu_blocks"] * engine["block_size"]
    # The core counts tokens, the replay whole blocks of 64.
    assert tokens == _estimated_tokens(sample) // 64 * 64


def test_capacity_is_that_of_one_rank() -> None:
    one = kv_tokens_per_rank(minimax(**shape(attention_dp=4, moe_ep=4)), "agg")
    replicas = kv_tokens_per_rank(minimax(**shape(attention_dp=4, moe_ep=4, replicas=2)), "agg")
    assert one == replicas


@pytest.mark.parametrize(
    ("sample", "kind", "phrase"),
    [
        (
            agg(model_name="meta-llama/Meta-Llama-3.1-405B", **shape()),
            "no_kv_room",
            "no KV budget",
        ),
        (
            minimax(**shape(tp=8, moe_tp=8)),
            "indivisible",
            "Invalid quantized MoE configuration",
        ),
        (agg(**shape(tp=3)), "indivisible", "divisible by"),
        (
            agg(
                backend="trtllm",
                model_name="deepseek-ai/DeepSeek-V4-Flash",
                is_moe=True,
                **shape(tp=4, moe_ep=4),
            ),
            "no_performance_data",
            "required op-level data unavailable",
        ),
        (agg(hardware_sku="l4"), "no_performance_data", "no backend version is available"),
        (
            agg(backend="sglang", num_g2_blocks=5, kv_bytes_per_token=5),
            "unsupported",
            "only for backend",
        ),
        (
            agg(
                model_name="deepseek-ai/DeepSeek-V4.1-Flash",
                is_moe=True,
                **shape(attention_dp=4, moe_ep=4),
            ),
            "no_performance_data",
            "requires attention_dp_size=1",
        ),
        (
            agg(
                model_name="nvidia/Gemma-4-31B-IT-NVFP4",
                is_moe=True,
                **shape(tp=2, moe_ep=2),
            ),
            "no_performance_data",
            "require moe_ep_size=1",
        ),
    ],
    ids=[
        *("memory", "quantised experts", "heads", "unmeasured model", "unmeasured system"),
        *("another backend's offloading", "model without attention DP", "model without experts"),
    ],
)
def test_a_shape_that_cannot_be_is_rejected_with_its_reason(
    sample: Sample, kind: str, phrase: str
) -> None:
    with pytest.raises(ShapeRejectedError, match=phrase) as caught:
        kv_tokens_per_rank(sample, "agg")
    assert caught.value.kind == kind
    assert "\n" not in caught.value.reason


@pytest.mark.parametrize(
    ("overrides", "phrase"),
    [
        ({"agg_block_size": 1}, "block_size"),
        ({**shape(tp=4), "model_name": MINIMAX, "is_moe": True}, "topology requires"),
    ],
)
def test_what_is_no_fact_about_the_shape_propagates(overrides: dict[str, Any], phrase: str) -> None:
    with pytest.raises(ValueError, match=phrase):
        kv_tokens_per_rank(agg(**overrides), "agg")


def test_a_large_moe_has_another_capacity_on_each_backend() -> None:
    glm = minimax(model_name=GLM, **shape(attention_dp=8, moe_ep=8))
    assert len({kv_tokens_per_rank({**glm, "backend": name}, "agg") for name in BACKENDS}) == 3


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_every_batch_limit_has_the_capacity_that_a_replay_will_have(
    backend: str, role: Role
) -> None:
    def limited(tokens: int) -> Sample:
        return disagg(backend=backend, **{f"{role}_max_num_batched_tokens": tokens})

    for tokens in (2048, 8192, 16_384, 32_768):
        engine = normalized_engine(limited(tokens), role)["engine"]
        expected = engine["num_gpu_blocks"] * engine["block_size"]
        assert kv_tokens_per_rank(limited(tokens), role) == expected


def test_batch_limits_of_a_moe_and_those_without_room_are_told_apart() -> None:
    tight = agg(model_name="Qwen/Qwen3-32B", **shape(tp=1), agg_gpu_memory_utilization=0.55)
    moe = minimax(backend="sglang")
    for sample in (moe, {**moe, "agg_max_num_batched_tokens": 4096}):
        engine = normalized_engine(sample, "agg")["engine"]
        expected = engine["num_gpu_blocks"] * engine["block_size"]
        assert kv_tokens_per_rank(sample, "agg") == expected
    assert kv_tokens_per_rank({**tight, "agg_max_num_batched_tokens": 2048}, "agg") > 0
    with pytest.raises(ShapeRejectedError, match="no KV budget"):
        kv_tokens_per_rank({**tight, "agg_max_num_batched_tokens": 262_144}, "agg")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_limits_of_scalars_are_those_of_the_engine(backend: str) -> None:
    least = LEAST_BLOCK_SIZE[backend]
    utmost = agg(backend=backend, agg_block_size=least, aic_nextn=MOST_SPECULATION)
    kv_tokens_per_rank(utmost, "agg")
    with pytest.raises(ValueError, match="block_size"):
        kv_tokens_per_rank(agg(backend=backend, agg_block_size=least - 1), "agg")
    with pytest.raises(ValueError, match="aic_nextn"):
        kv_tokens_per_rank(agg(backend=backend, aic_nextn=MOST_SPECULATION + 1), "agg")
