"""Refuses loads that a slot has no memory for, before their replay starts."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from typing import Final

from schemas.messages import Measurement, SyntheticLoad, TraceLoad
from spica_async.processes.memory import mebibytes, readable

FootprintEstimator = Callable[[TraceLoad | SyntheticLoad], int]
"""Estimates the bytes of memory that a replay of a load will need."""

_FOOTPRINT_ESTIMATOR: Final = "spica_async.engine.footprint:estimate_bytes"


class MemoryGuard:
    """Refuses loads that need more than a slot may take.

    Args:
        limit_bytes: of a slot.
        estimate_bytes: by default the engine's own estimator.
    """

    def __init__(self, limit_bytes: int, estimate_bytes: FootprintEstimator | None = None) -> None:
        self._limit_bytes = limit_bytes
        self._estimate_bytes: FootprintEstimator = estimate_bytes or pkgutil.resolve_name(
            _FOOTPRINT_ESTIMATOR
        )

    def refusal(self, load: TraceLoad | SyntheticLoad) -> Measurement | None:
        """What the evaluation fails with, if there is not enough memory for it."""
        needed = self._estimate_bytes(load)
        if needed <= self._limit_bytes:
            return None
        return Measurement.failed(
            "resource_limited",
            f"{readable(load.requests)} requests with {readable(load.total_tokens)} tokens"
            f" need about {mebibytes(needed)} of memory, a slot here has"
            f" {mebibytes(self._limit_bytes)}",
        )
