"""Parallel shapes of one worker: which exist, what they are called, what each backend refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schemas.search_space import GPUS_PER_WORKER, Backend, MoeBackend

Strategy = Literal["tp", "tep", "dep", "dtp", "mixed"]
AttentionMode = Literal["tp", "dp"]
FfnMode = Literal["tp", "ep"]


@dataclass(frozen=True, order=True, slots=True)
class ParallelShape:
    """How one worker spreads over `tp * attention_dp` GPUs; pipeline parallelism is always 1."""

    tp: int
    attention_dp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of one worker."""
        return self.tp * self.attention_dp

    @property
    def attention_mode(self) -> AttentionMode:
        """Whether attention is replicated over data-parallel ranks."""
        return "dp" if self.attention_dp > 1 else "tp"

    @property
    def ffn_mode(self) -> FfnMode:
        """Whether experts are spread over GPUs."""
        return "ep" if self.moe_ep > 1 else "tp"

    @property
    def strategy(self) -> Strategy:
        """The pattern's name; a single GPU and every dense shape are `tp`."""
        if (self.tp > 1 and self.attention_dp > 1) or (self.moe_tp > 1 and self.moe_ep > 1):
            return "mixed"
        names: dict[tuple[AttentionMode, FfnMode], Strategy] = {
            ("tp", "tp"): "tp",
            ("tp", "ep"): "tep",
            ("dp", "ep"): "dep",
            ("dp", "tp"): "dtp",
        }
        return names[self.attention_mode, self.ffn_mode]

    def __str__(self) -> str:
        sizes = {
            "tp": self.tp,
            "attention_dp": self.attention_dp,
            "moe_tp": self.moe_tp,
            "moe_ep": self.moe_ep,
        }
        return " ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "tp 1"


def enumerate_shapes(*, is_moe: bool, gpu_budget: int) -> list[ParallelShape]:
    """Every pure shape that fits `gpu_budget` GPUs, in ascending order of its sizes.

    A dense model knows plain TP only; a MoE model spreads attention over TP or DP, and experts over
    TP or EP, on all GPUs of the worker.
    """
    shapes = []
    for gpus in GPUS_PER_WORKER:
        if gpus > gpu_budget:
            break
        if gpus == 1 or not is_moe:
            shapes.append(ParallelShape(tp=gpus))
            continue
        shapes += [
            ParallelShape(tp=tp, attention_dp=gpus // tp, moe_tp=moe_tp, moe_ep=gpus // moe_tp)
            for tp in (1, gpus)
            for moe_tp in (1, gpus)
        ]
    return sorted(shapes)


def width_problem(shape: ParallelShape, *, is_moe: bool) -> str | None:
    """Why the shape cannot hold this kind of model, or None.

    Enumerated shapes always can; this is for the ones that a person pins.
    """
    if not is_moe:
        if (shape.attention_dp, shape.moe_tp, shape.moe_ep) != (1, 1, 1):
            return "a dense model takes tp alone: attention_dp, moe_tp and moe_ep stay 1"
        return None
    experts = shape.moe_tp * shape.moe_ep
    if shape.gpus != experts:
        return f"tp * attention_dp is {shape.gpus} but moe_tp * moe_ep is {experts}"
    return None


def backend_problem(
    shape: ParallelShape, backend: Backend, moe_backend: MoeBackend | None
) -> str | None:
    """Why this backend refuses the shape, or None."""
    if backend == "trtllm" and shape.tp > 1 and shape.attention_dp > 1:
        return "trtllm takes no tp over 1 together with attention_dp over 1"
    if backend == "vllm" and shape.moe_tp > 1 and shape.moe_ep > 1:
        return "vllm takes no moe_tp over 1 together with moe_ep over 1"
    if backend == "sglang" and moe_backend is not None and shape.moe_tp > 1:
        return f"moe_backend {moe_backend} on sglang takes moe_tp 1 only"
    return None
