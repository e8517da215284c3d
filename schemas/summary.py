"""What a list of sweeps shows of one."""

from __future__ import annotations

from pydantic import Field

from schemas.base import MessageModel


class ListedSweep(MessageModel):
    """Kept beside each sweep, so that a list need not look into any of them."""

    model: str = ""
    hardware: str = ""
    target: str = ""
    per_branch: int = Field(default=0, description="unique successes asked of each branch")
    branches: int = Field(default=0, description="at most")
    feasible: int = Field(default=0, description="unique successes so far")
    reason: str | None = Field(default=None, description="why it rests or has ended")
    best_score: float | None = Field(default=None, description="signed: higher is better")
