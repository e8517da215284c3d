"""What the planning process is given."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.config import SmartSearchConfig
from schemas.messages import TraceLoad


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a plan is made of."""

    config: SmartSearchConfig
    trace: TraceLoad | None
