"""A disaggregated deployment that nobody replays: what it scores, and how long that would take."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from schemas.messages import Sample

SPACE: Mapping[str, Any] = {
    "deployment_mode": ["disagg"],
    "gpu_budget": 64,
    "router_mode": ["round_robin", "kv_router"],
}
"""The search space, of eleven parameters, on top of a small one that pins the rest."""

BEST_SCORE = 1000.0
SHORTEST_SECONDS = 1.0
LONGEST_SECONDS = 20.0


def score_of(sample: Sample) -> float:
    """The throughput of a sample of `SPACE`, in (0, `BEST_SCORE`]; one hill with interactions."""
    gpus = _number(sample, "used_gpus")
    prefill = _number(sample, "prefill_tp") * _number(sample, "prefill_replicas")
    seqs = math.log2(_number(sample, "prefill_max_num_seqs")) / 8
    tokens = math.log2(_number(sample, "prefill_max_num_batched_tokens") / 16384)
    losses = [
        2.5 * (gpus / 64 - 0.9) ** 2,
        # Larger batches of prompts need fewer GPUs.
        6.0 * (prefill / gpus - 0.55 + 0.3 * seqs) ** 2,
        1.5 * (seqs - 0.6) ** 2,
        0.15 * tokens**2,
        0.12 * math.log2(_number(sample, "prefill_tp") / 4) ** 2,
        0.12 * math.log2(_number(sample, "decode_tp") / 2) ** 2,
        0.1 * math.log2(_number(sample, "decode_max_num_seqs") / 512) ** 2,
        0.35 if sample["router_mode"] == "round_robin" else _router_loss(sample),
    ]
    return BEST_SCORE * math.exp(-sum(losses))


def seconds_of(key: str) -> float:
    """How long the replay of a sample takes, from `SHORTEST_SECONDS` to `LONGEST_SECONDS`.

    It depends on the sample's key alone, as evenly on a log scale as a hash is: half of the
    replays end within 4.5 s, and the mean is 6.3 s.
    """
    share = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") / 2**64
    return float(SHORTEST_SECONDS * (LONGEST_SECONDS / SHORTEST_SECONDS) ** share)


def _router_loss(sample: Sample) -> float:
    return (
        0.5 * (_number(sample, "overlap_score_credit") - 0.5) ** 2
        + 0.03 * (math.log2(_number(sample, "prefill_load_scale") + 0.25) - 1) ** 2
        + 0.3 * abs(_number(sample, "router_temperature") - 0.2)
    )


def _number(sample: Mapping[str, JsonValue], name: str) -> float:
    value = sample[name]
    assert isinstance(value, int | float)
    return float(value)
