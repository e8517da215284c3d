"""The latent features of a parallel configuration, by the names of the study's parameters."""

from __future__ import annotations

from schemas.search_space import Role

USED_GPU_RATIO = "used_gpu_ratio"
PREFILL_GPU_SHARE = "prefill_gpu_share"
DEFAULT_USED_GPU_RATIO = 1.0
DEFAULT_PREFILL_GPU_SHARE = 0.5
# Sums of squares in another order differ in their last bits; such distances count as equal.
SAME_DISTANCE = 1e-12


def engine_size(role: Role) -> str:
    """The parameter that asks for a role's GPUs per engine."""
    return f"{role}_num_gpus_per_engine_target"


def attention_mode(role: Role) -> str:
    """The parameter that asks for a role's attention mode."""
    return f"{role}_attention_mode"


def ffn_mode(role: Role) -> str:
    """The parameter that asks for a role's FFN mode."""
    return f"{role}_ffn_mode"
