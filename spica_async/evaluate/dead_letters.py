"""Gives each request in the dead-letter queue its failure, so that nobody waits for a result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class DeadRequest:
    """An evaluation request that no worker will answer.

    Attributes:
        request: what was asked for.
        reply_to: the queue of the coordinator that asked.
        verdict: the failure that it comes to; None if the bus has dropped it for reasons that are
            not its own, such as a limit on the queue's length.
    """

    request: EvaluationRequest
    reply_to: str
    verdict: EvaluationResult | None


def read_dead_letter(delivery: Delivery) -> DeadRequest:
    """Read a message from the dead-letter queue.

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
    return DeadRequest(request, message.reply_to, _verdict(request, letter.reason))


def _verdict(request: EvaluationRequest, reason: DeadLetterReason) -> EvaluationResult | None:
    if reason not in _VERDICTS:
        return None
    return failed_result(request.evaluation_id, request.sweep_id, *_VERDICTS[reason])


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
                await self._handle(read_dead_letter(delivery))
            except UnwantedDeadLetterError as error:
                self._warnings.add("dead_letter_dropped", error.kind, error=str(error))
            await acknowledge(delivery)

    async def _handle(self, dead: DeadRequest) -> None:
        evaluation_id = dead.request.evaluation_id
        if dead.reply_to == self._outgoing.reply_to:
            if dead.verdict is None:
                self._lost(evaluation_id)
            elif (why := await self._settle(dead.verdict)) is not None:
                raise UnwantedDeadLetterError(DeadLetterKind.NOT_AWAITED, f"{evaluation_id}: {why}")
        elif dead.verdict is None:
            raise UnwantedDeadLetterError(DeadLetterKind.OTHERS_DROPPED, evaluation_id)
        else:
            await self._forward(dead.reply_to, dead.verdict)

    async def _forward(self, reply_to: str, verdict: EvaluationResult) -> None:
        try:
            await self._bus.publish(reply_to, self._outgoing.result(verdict))
        except (UnroutableError, AccessRefusedError, MessageTooLargeError) as error:
            raise UnwantedDeadLetterError(DeadLetterKind.NOT_AWAITED, str(error)) from error
