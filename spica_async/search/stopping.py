"""How a sweep is stopped, and what it is afterwards."""

from __future__ import annotations

from typing import Final, Literal, get_args

from spica_async.processes.stopping import Stop, StopState

StoppedStatus = Literal["queued", "interrupted", "paused", "cancelled"]
"""The status of a sweep that was stopped, the least weighty first; one that is queued goes on by
itself.
"""
_BY_WEIGHT: Final[tuple[StoppedStatus, ...]] = get_args(StoppedStatus)


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
        if self.requested.is_set():
            status = max(status, self.status, key=_BY_WEIGHT.index)
        self.status = status
        self.request()
