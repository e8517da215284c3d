"""How a sweep is stopped, and what it is afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from spica_async.processes.stopping import Stop, StopState

StoppedStatus = Literal["queued", "interrupted", "paused", "cancelled"]
"""The status of a sweep that was stopped; one that is queued goes on by itself."""

_WEIGHTS: Final[Mapping[StoppedStatus, int]] = MappingProxyType(
    {"queued": 0, "interrupted": 1, "paused": 2, "cancelled": 3}
)


class SweepStop(Stop):
    """A request to stop one sweep.

    Args:
        state: see `Stop`.
        grace_seconds: for evaluations that run at the stop to bring their result.
        requeues: whether the sweep is queued again, and has not failed, when the bus stays away.

    Attributes:
        status: what the sweep is to be once it has stopped.
    """

    def __init__(
        self,
        state: StopState = StopState.PREPARING,
        *,
        grace_seconds: float = 0.0,
        requeues: bool = False,
    ) -> None:
        super().__init__(state)
        self.grace_seconds = grace_seconds
        self.requeues = requeues
        self.status: StoppedStatus = "interrupted"

    def request_status(self, status: StoppedStatus) -> None:
        """Stop the sweep; of several requests the weightiest decides what it is then."""
        if not self.requested.is_set() or _WEIGHTS[status] > _WEIGHTS[self.status]:
            self.status = status
        self.request()
