"""Gives each request in the dead-letter queue its failure, so that nobody waits for a result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Final

from pydantic import ValidationError

from schemas.messages import (
    EVALUATION_COMPLETED,
    EVALUATION_REQUESTED,
    Cause,
    EvaluationRequest,
    EvaluationRequested,
    EvaluationResult,
)
from spica_async.bus.counted import CountedWarnings
from spica_async.bus.port import (
    AccessRefusedError,
    Bus,
    Consumer,
    DeadLetterReason,
    Delivery,
    MessageTooLargeError,
    UnroutableError,
)
from spica_async.evaluate.messages import Outgoing, acknowledge, failed_result

_VERDICTS: Final[dict[DeadLetterReason, tuple[Cause, str]]] = {
    DeadLetterReason.DELIVERY_LIMIT: (
        "delivery_limit",
        "it was given back too often: it takes its worker down, or no worker could handle it",
    ),
    DeadLetterReason.REJECTED: (
        "request_refused",
        "a worker could not read the request, or not send its result",
    ),
}


class DeadLetterKind(StrEnum):
    """Dead letters that end here."""

    RESULT = "result"
    """A result that its coordinator did not take; the request is sent again if need be."""
    UNREADABLE = "unreadable"
    """Neither a request nor a result."""
    NEVER_SENT = "never_sent"
    """It was put into the dead-letter queue, and did not die on its way to anybody."""
    NOT_AWAITED = "not_awaited"
    """A request that has ended, or whose coordinator is gone."""
    OTHERS_DROPPED = "others_dropped"
    """A request that a policy of the broker dropped; its own coordinator will miss it."""


class UnwantedDeadLetterError(Exception):
    """Nothing can be made of a dead letter."""

    def __init__(self, kind: DeadLetterKind, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


class DeadLetters:
    """Takes dead letters, and settles the evaluations of ours and of others that they asked for.

    Args:
        bus: where the other coordinators are.
        outgoing: writes our messages.
        settle: takes the failure of a request of ours; returns why if nobody waits for it.
        lost: takes the id of a request of ours that the bus has dropped.
        warnings: counts the letters that end here.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        outgoing: Outgoing,
        settle: Callable[[EvaluationResult], Awaitable[StrEnum | None]],
        lost: Callable[[str], None],
        warnings: CountedWarnings,
    ) -> None:
        self._bus = bus
        self._outgoing = outgoing
        self._settle = settle
        self._lost = lost
        self._warnings = warnings

    async def take(self, dead_letters: Consumer) -> None:
        """Take dead letters for good, each once: none is ever given back."""
        async for delivery in dead_letters:
            try:
                await self._handle(delivery)
            except UnwantedDeadLetterError as error:
                self._warnings.add("dead_letter_dropped", error.kind, error=str(error))
            await acknowledge(delivery)

    async def _handle(self, delivery: Delivery) -> None:
        request, reply_to, reason = _read_request(delivery)
        evaluation_id = request.evaluation_id
        is_ours = reply_to == self._outgoing.reply_to
        if reason in _VERDICTS:
            verdict = failed_result(evaluation_id, request.sweep_id, *_VERDICTS[reason])
            if not is_ours:
                await self._forward(reply_to, verdict)
            elif (why := await self._settle(verdict)) is not None:
                raise UnwantedDeadLetterError(DeadLetterKind.NOT_AWAITED, f"{evaluation_id}: {why}")
        # Dropped for reasons that are not its own, such as a limit on the queue's length.
        elif is_ours:
            self._lost(evaluation_id)
        else:
            raise UnwantedDeadLetterError(DeadLetterKind.OTHERS_DROPPED, evaluation_id)

    async def _forward(self, reply_to: str, verdict: EvaluationResult) -> None:
        try:
            await self._bus.publish(reply_to, self._outgoing.result(verdict))
        except (UnroutableError, AccessRefusedError, MessageTooLargeError) as error:
            raise UnwantedDeadLetterError(DeadLetterKind.NOT_AWAITED, str(error)) from error


def _read_request(delivery: Delivery) -> tuple[EvaluationRequest, str, DeadLetterReason]:
    """Read a request that died, the queue of the coordinator that sent it, and why it died.

    Raises:
        UnwantedDeadLetterError: it is no evaluation request that died.
    """
    message, letter = delivery.message, delivery.dead_letter
    if message.type == EVALUATION_COMPLETED:
        raise UnwantedDeadLetterError(DeadLetterKind.RESULT, message.message_id)
    if letter is None:
        raise UnwantedDeadLetterError(DeadLetterKind.NEVER_SENT, f"type {message.type!r}")
    if message.type != EVALUATION_REQUESTED or message.reply_to is None:
        raise UnwantedDeadLetterError(DeadLetterKind.UNREADABLE, f"type {message.type!r}")
    try:
        request = EvaluationRequested.model_validate_json(message.body).data
    except ValidationError as error:
        detail = f"{error.error_count()} errors"
        raise UnwantedDeadLetterError(DeadLetterKind.UNREADABLE, detail) from error
    return request, message.reply_to, letter.reason
