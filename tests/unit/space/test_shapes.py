"""Which parallel shapes exist, what they are called, and who refuses them."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from schemas.search_space import Backend, MoeBackend
from spica_async.space.shapes import (
    ParallelShape,
    backend_problem,
    enumerate_shapes,
    width_problem,
)

SIZES = (1, 2, 4, 8, 16)
MIXED_ATTENTION = ParallelShape(tp=2, attention_dp=2, moe_tp=1, moe_ep=4)
MIXED_EXPERTS = ParallelShape(tp=4, attention_dp=1, moe_tp=2, moe_ep=2)


@pytest.mark.parametrize(
    ("budget", "sizes"), [(1, 1), (2, 2), (3, 2), (4, 3), (15, 4), (16, 5), (17, 5), (1000, 5)]
)
def test_a_dense_worker_takes_each_size_within_the_budget_by_tp(budget: int, sizes: int) -> None:
    shapes = enumerate_shapes(is_moe=False, gpu_budget=budget)
    assert shapes == [ParallelShape(size) for size in SIZES[:sizes]]
    assert {shape.strategy for shape in shapes} == {"tp"}


@pytest.mark.parametrize("budget", [1, 2, 7, 8, 16, 64])
def test_a_moe_worker_takes_the_four_pure_patterns_and_one_gpu(budget: int) -> None:
    # Written out from the patterns, over everything that could be.
    pure = [
        ParallelShape(tp, dp, moe_tp, moe_ep)
        for tp, dp, moe_tp, moe_ep in itertools.product(SIZES, repeat=4)
        if tp * dp == moe_tp * moe_ep and tp * dp in SIZES and tp * dp <= budget
        if (tp > 1, dp > 1, moe_tp > 1, moe_ep > 1)
        in {
            (True, False, False, True),  # tep
            (False, True, False, True),  # dep
            (True, False, True, False),  # tp
            (False, True, True, False),  # dtp
            (False, False, False, False),  # one GPU
        }
    ]
    assert enumerate_shapes(is_moe=True, gpu_budget=budget) == sorted(pure)


@pytest.mark.parametrize(
    ("shape", "attention", "ffn", "strategy"),
    [
        (ParallelShape(1), "tp", "tp", "tp"),
        (ParallelShape(8), "tp", "tp", "tp"),
        (ParallelShape(8, moe_tp=8), "tp", "tp", "tp"),
        (ParallelShape(8, moe_ep=8), "tp", "ep", "tep"),
        (ParallelShape(1, attention_dp=8, moe_ep=8), "dp", "ep", "dep"),
        (ParallelShape(1, attention_dp=8, moe_tp=8), "dp", "tp", "dtp"),
        (MIXED_ATTENTION, "dp", "ep", "mixed"),
        (MIXED_EXPERTS, "tp", "ep", "mixed"),
    ],
    ids=str,
)
def test_a_shape_has_modes_and_a_name(
    shape: ParallelShape, attention: str, ffn: str, strategy: str
) -> None:
    assert (shape.attention_mode, shape.ffn_mode, shape.strategy) == (attention, ffn, strategy)


def test_a_shape_says_what_is_spread() -> None:
    assert str(ParallelShape(1)) == "tp 1"
    assert str(ParallelShape(4)) == "tp 4"
    assert str(ParallelShape(2, 2, 1, 4)) == "tp 2 attention_dp 2 moe_ep 4"
    assert ParallelShape(2, 4, 8).gpus == 8


@pytest.mark.parametrize(
    "shape",
    [
        ParallelShape(2, attention_dp=2),
        ParallelShape(2, moe_tp=2),
        ParallelShape(2, moe_ep=2),
    ],
)
def test_a_dense_model_takes_tp_alone(shape: ParallelShape) -> None:
    problem = width_problem(shape, is_moe=False)
    assert problem == "a dense model takes tp alone: attention_dp, moe_tp and moe_ep stay 1"
    assert width_problem(ParallelShape(shape.tp), is_moe=False) is None


def test_a_moe_models_experts_span_the_whole_worker() -> None:
    problem = width_problem(ParallelShape(4, 2, 2, 2), is_moe=True)
    assert problem == "tp * attention_dp is 8 but moe_tp * moe_ep is 4"
    assert width_problem(ParallelShape(2), is_moe=True) is not None
    assert width_problem(ParallelShape(2, moe_tp=2, moe_ep=2), is_moe=True) is not None
    for shape in (ParallelShape(1), MIXED_ATTENTION, MIXED_EXPERTS):
        assert width_problem(shape, is_moe=True) is None


@pytest.mark.parametrize("moe_backend", [None, *get_args(MoeBackend)])
@pytest.mark.parametrize("backend", get_args(Backend))
def test_backends_refuse_what_they_cannot_run_and_nothing_else(
    backend: Backend, moe_backend: MoeBackend | None
) -> None:
    shapes = [*enumerate_shapes(is_moe=True, gpu_budget=8), MIXED_ATTENTION, MIXED_EXPERTS]
    refused = {shape for shape in shapes if backend_problem(shape, backend, moe_backend)}
    expected = {
        "trtllm": {MIXED_ATTENTION},
        "vllm": {MIXED_EXPERTS},
        "sglang": {shape for shape in shapes if moe_backend and shape.moe_tp > 1},
    }
    assert refused == expected[backend]


def test_a_refusal_says_why() -> None:
    assert backend_problem(MIXED_ATTENTION, "trtllm", None) == (
        "trtllm takes no tp over 1 together with attention_dp over 1"
    )
    assert backend_problem(MIXED_EXPERTS, "vllm", None) == (
        "vllm takes no moe_tp over 1 together with moe_ep over 1"
    )
    assert backend_problem(MIXED_EXPERTS, "sglang", "deepep_moe") == (
        "moe_backend deepep_moe on sglang takes moe_tp 1 only"
    )
