"""The messages that a coordinator sends."""

from __future__ import annotations

from typing import Any

from schemas.control import RollCall, RollCalled, SweepCancellation, SweepCancelled
from schemas.envelope import Envelope
from schemas.messages import (
    EvaluationCompleted,
    EvaluationRequest,
    EvaluationRequested,
    EvaluationResult,
)
from spica_async.bus.port import Message


class Outgoing:
    """Puts what one coordinator has to say into messages.

    Args:
        coordinator: its name.
        reply_to: the queue of its results.
        run: how often its sweep was begun or resumed, this time included.
    """

    def __init__(self, coordinator: str, reply_to: str, run: int) -> None:
        self._coordinator = coordinator
        self._run = run
        self._source = f"spica/coordinator/{coordinator}"
        self._reply_to = reply_to

    def request(self, request: EvaluationRequest) -> Message:
        """A request that asks for its result in our queue; the same message each time."""
        envelope = EvaluationRequested(
            id=request.evaluation_id,
            source=self._source,
            subject=request.evaluation_id,
            data=request.model_copy(update={"run": self._run}),
        )
        return _message(envelope, self._reply_to)

    def result(self, result: EvaluationResult) -> Message:
        """A result that no worker has given, for the coordinator that awaits it."""
        subject = result.evaluation_id
        return _message(EvaluationCompleted(source=self._source, subject=subject, data=result))

    def roll_call(self) -> Message:
        """Have every worker tell of itself now."""
        call = RollCall(coordinator=self._coordinator)
        return _message(RollCalled(source=self._source, data=call))

    def cancellation(self, sweep_id: str, grace_seconds: float) -> Message:
        """Tell that nobody waits any more for what has not started."""
        cancellation = SweepCancellation(
            sweep_id=sweep_id, run=self._run, grace_seconds=grace_seconds
        )
        return _message(SweepCancelled(source=self._source, subject=sweep_id, data=cancellation))


def _message(envelope: Envelope[Any], reply_to: str | None = None) -> Message:
    body = envelope.model_dump_json().encode()
    return Message(body, envelope.id, envelope.type, reply_to=reply_to)
