"""The state of one branch: what to ask, what to send, what to tell, and when to stop."""

from __future__ import annotations

from spica_async.search.schedule.continuous import ContinuousState, batch_for
from spica_async.search.schedule.rounds import RoundsState
from spica_async.search.schedule.state import (
    ATTEMPTS_PER_TARGET,
    FINAL_PHASES,
    TELLING_FAILURES,
    TRANSITIONS,
    BranchState,
    Disposition,
    Phase,
    Tell,
    Verdict,
)

__all__ = [
    "ATTEMPTS_PER_TARGET",
    "FINAL_PHASES",
    "TELLING_FAILURES",
    "TRANSITIONS",
    "BranchState",
    "ContinuousState",
    "Disposition",
    "Phase",
    "RoundsState",
    "Tell",
    "Verdict",
    "batch_for",
]
