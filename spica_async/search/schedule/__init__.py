"""The state of one branch: what to ask for, what the optimizer observes, and when to stop."""

from __future__ import annotations

from spica_async.search.schedule.continuous import ContinuousState, batch_for
from spica_async.search.schedule.rounds import RoundsState
from spica_async.search.schedule.state import (
    ATTEMPTS_PER_TARGET,
    ENOUGH_FAILURES,
    FINAL_PHASES,
    TRANSITIONS,
    BranchState,
    Disposition,
    Observation,
    Phase,
    moved,
)

__all__ = [
    "ATTEMPTS_PER_TARGET",
    "ENOUGH_FAILURES",
    "FINAL_PHASES",
    "TRANSITIONS",
    "BranchState",
    "ContinuousState",
    "Disposition",
    "Observation",
    "Phase",
    "RoundsState",
    "batch_for",
    "moved",
]
