"""What Dynamo's own tools deploy where nobody has chosen, and what its replays do by default."""

from __future__ import annotations

import pytest

from schemas.search_space import PinnedShape
from spica_async.engine import runtime
from spica_async.engine.default_shape import NoDefaultShapeError, default_shape


@pytest.mark.parametrize(
    ("model", "sku", "gpus", "expected"),
    [
        ("Qwen/Qwen3-32B", "h200_sxm", 8, PinnedShape(tp=1, replicas=8)),
        ("Qwen/Qwen3-32B", "h200_sxm", 3, PinnedShape(tp=1, replicas=3)),
        ("meta-llama/Meta-Llama-3.1-70B", "h200_sxm", 8, PinnedShape(tp=2, replicas=4)),
        ("MiniMaxAI/MiniMax-M2.5", "b200_sxm", 32, PinnedShape(tp=4, moe_tp=4, replicas=8)),
    ],
)
def test_the_smallest_workers_that_hold_the_model_fill_the_budget(
    model: str, sku: str, gpus: int, expected: PinnedShape
) -> None:
    assert default_shape(model, sku, "vllm", gpus) == expected


def test_what_it_knows_nothing_of_has_none() -> None:
    with pytest.raises(NoDefaultShapeError, match="nobody/knows"):
        default_shape("nobody/knows", "h200_sxm", "vllm", 8)


def test_the_limits_of_the_baseline_are_those_of_a_replay_without_any() -> None:
    engine = runtime.load("dynamo.mocker.config").normalize_mocker_config()["engine"]
    assert (engine["max_num_seqs"], engine["max_num_batched_tokens"]) == (256, 8192)
