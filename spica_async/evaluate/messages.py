"""The messages that a coordinator sends, and the results that it reads."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import structlog
from pydantic import ValidationError

from schemas.control import RollCall, RollCalled, SweepCancellation, SweepCancelled
from schemas.envelope import EnvelopeSubject
from schemas.messages import (
    EVALUATION_COMPLETED,
    Cause,
    EvaluationCompleted,
    EvaluationRequest,
    EvaluationRequested,
    EvaluationResult,
    Measurement,
    SyntheticLoad,
    window_of,
)
from spica_async.bus.port import Delivery, DeliveryLostError, Message

UNKNOWN_WORKER: Final = "unknown"
"""Stands in a result that no worker has given."""

_ANY_VERSION: Final = EVALUATION_COMPLETED.rpartition(".")[0] + "."

log = structlog.get_logger(__name__)


class Discarded(StrEnum):
    """Why a message in the results queue was dropped."""

    LATE = "late"
    """Its evaluation has ended: a second result, or one that nobody waits for any more."""
    UNKNOWN = "unknown"
    """No evaluation of that id was asked for."""
    MALFORMED = "malformed"
    """It says that it is a result, and cannot be read as one."""
    UNKNOWN_TYPE = "unknown_type"
    """It is something else, or a result of a version that we do not know."""
    OTHER_SWEEP = "other_sweep"
    """It names an evaluation of ours, and a sweep that this one is not part of."""


class UnreadableResultError(Exception):
    """A message in the results queue is no result.

    Attributes:
        kind: what it is counted as.
        subject: the evaluation that it is about, if it says so.
    """

    def __init__(self, kind: Discarded, detail: str, subject: str | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.subject = subject


def read_result(message: Message) -> EvaluationResult:
    """Read a message from the results queue.

    Raises:
        UnreadableResultError: it is no result.
    """
    if not message.type.startswith(_ANY_VERSION):
        raise UnreadableResultError(Discarded.UNKNOWN_TYPE, f"type {message.type!r}")
    try:
        return EvaluationCompleted.model_validate_json(message.body).data
    except ValidationError as error:
        problems = {
            problem["loc"]: problem["msg"]
            for problem in error.errors(include_url=False, include_input=False)
        }
        where, what = next(iter(problems.items()))
        detail = f"{'.'.join(map(str, where)) or 'body'}: {what}"
        kind = Discarded.UNKNOWN_TYPE if ("type",) in problems else Discarded.MALFORMED
        raise UnreadableResultError(kind, detail, _subject(message.body)) from error


def _subject(body: bytes) -> str | None:
    try:
        return EnvelopeSubject.model_validate_json(body).subject
    except ValidationError:
        return None


def is_of_other_window(request: EvaluationRequest, result: EvaluationResult) -> bool:
    """Whether a worker has measured a whole run, and was asked for the steady part of it."""
    report, load = result.measurement.report, request.load
    is_steady = isinstance(load, SyntheticLoad) and load.window == "steady"
    return is_steady and report is not None and window_of(report) == "whole"


def is_of_other_model(request: EvaluationRequest, result: EvaluationResult) -> bool:
    """Whether a worker has answered, and not for the model whose files the request has brought."""
    asked = None if request.model is None else request.model.sha256
    # A failure that no worker has reported is about no model.
    by_worker = result.worker != UNKNOWN_WORKER or result.measurement.outcome != "failed"
    return by_worker and result.model_sha256 != asked


def failed_result(evaluation_id: str, sweep_id: str, cause: Cause, detail: str) -> EvaluationResult:
    """The result of an evaluation that no worker has given a result of."""
    return EvaluationResult(
        evaluation_id=evaluation_id,
        sweep_id=sweep_id,
        worker=UNKNOWN_WORKER,
        measurement=Measurement.failed(cause, detail),
        wall_seconds=0.0,
    )


async def acknowledge(delivery: Delivery) -> None:
    """Tell the bus that a message is done with; one that was lost comes again, and finds it so."""
    try:
        await delivery.ack()
    except DeliveryLostError as error:
        log.info("coordinator.delivery_lost", error=str(error))


class Outgoing:
    """Writes the messages of one coordinator.

    Args:
        coordinator: its name, which is the sweep's id.
        reply_to: the queue of its results.
        run: how often its sweep was begun or resumed, this time included.
    """

    def __init__(self, coordinator: str, reply_to: str, run: int) -> None:
        self._coordinator = coordinator
        self._run = run
        self._source = f"spica/coordinator/{coordinator}"
        self.reply_to = reply_to

    def request(self, request: EvaluationRequest) -> Message:
        """A request that asks for its result in our queue; the same message each time."""
        envelope = EvaluationRequested(
            id=request.evaluation_id,
            source=self._source,
            subject=request.evaluation_id,
            data=request.model_copy(update={"run": self._run}),
        )
        return Message.of(envelope, self.reply_to)

    def result(self, result: EvaluationResult) -> Message:
        """A result that no worker has given, for the coordinator that awaits it."""
        subject = result.evaluation_id
        return Message.of(EvaluationCompleted(source=self._source, subject=subject, data=result))

    def roll_call(self) -> Message:
        """Have every worker publish its status now."""
        call = RollCall(coordinator=self._coordinator)
        return Message.of(RollCalled(source=self._source, data=call))

    def cancellation(self, grace_seconds: float) -> Message:
        """Have workers drop what has not started, and end what runs after `grace_seconds`."""
        sweep_id = self._coordinator
        cancellation = SweepCancellation(
            sweep_id=sweep_id, run=self._run, grace_seconds=grace_seconds
        )
        return Message.of(SweepCancelled(source=self._source, subject=sweep_id, data=cancellation))
