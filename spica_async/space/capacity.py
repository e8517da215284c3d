"""What is known of the KV cache of each shape, asked of the engine before a sweep starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from schemas.search_space import Backend, Role
from spica_async.space.shapes import ParallelShape


@dataclass(frozen=True, slots=True)
class CapacityKey:
    """What a worker's KV capacity depends on within one sweep."""

    backend: Backend
    role: Role
    shape: ParallelShape
    max_num_batched_tokens: int


CapacityTable: TypeAlias = Mapping[CapacityKey, int | str]
"""KV tokens of one attention rank, or the engine's reason why the shape cannot run."""


def rejection(capacity: int | str, longest_sequence: int) -> str | None:
    """Why a worker with this per-rank capacity cannot serve `longest_sequence` tokens, or None."""
    if isinstance(capacity, str):
        return capacity
    if capacity <= longest_sequence:
        return f"{capacity} KV tokens a rank hold no sequence of {longest_sequence} tokens"
    return None
