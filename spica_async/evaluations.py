"""Sends evaluation requests over the bus and hands each its one terminal result."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Self

import structlog
from pydantic import ValidationError

from schemas.envelope import EnvelopeSubject
from schemas.messages import (
    EVALUATION_COMPLETED,
    EvaluationCompleted,
    EvaluationRequest,
    EvaluationRequested,
    EvaluationResult,
    Measurement,
)
from spica_async.bus.port import Bus, Delivery, Message
from spica_async.bus.topology import declare, requests_queue, results_queue

log = structlog.get_logger(__name__)


class Discarded(StrEnum):
    """Why a message in the results queue was dropped."""

    LATE = "late"
    """Its evaluation has ended: a second result, or one that nobody waits for any more."""
    UNKNOWN = "unknown"
    """No evaluation of that id was asked for."""
    MALFORMED = "malformed"
    """It is no result."""


class Evaluations:
    """The requests of one coordinator: in flight until their first result, then ended for good.

    At most `parallel` requests are in flight; further ones wait their turn in order.
    """

    def __init__(self, bus: Bus, *, coordinator: str, fingerprint: str, parallel: int) -> None:
        self._bus = bus
        self._coordinator = coordinator
        self._requests = requests_queue(fingerprint)
        self._results = results_queue(coordinator)
        self._turn = asyncio.Semaphore(parallel)
        self._waiting: dict[str, asyncio.Future[EvaluationResult]] = {}
        self._ended: set[str] = set()
        self.discarded: Counter[Discarded] = Counter()

    @classmethod
    @asynccontextmanager
    async def open(
        cls, bus: Bus, *, coordinator: str, fingerprint: str, parallel: int
    ) -> AsyncIterator[Self]:
        """Declare the queues and take results while the context is open."""
        evaluations = cls(bus, coordinator=coordinator, fingerprint=fingerprint, parallel=parallel)
        await declare(bus, evaluations._requests, evaluations._results)
        async with asyncio.TaskGroup() as group:
            receiver = group.create_task(evaluations._receive(parallel))
            try:
                yield evaluations
            finally:
                receiver.cancel()

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """Wait for a turn, send the request and wait for its result, however long that takes.

        Raises:
            ValueError: if an evaluation of that id was asked for before.
        """
        evaluation_id = request.evaluation_id
        if evaluation_id in self._waiting or evaluation_id in self._ended:
            raise ValueError(f"evaluation {evaluation_id} was asked for before")
        result: asyncio.Future[EvaluationResult] = asyncio.get_running_loop().create_future()
        self._waiting[evaluation_id] = result
        try:
            async with self._turn:
                await self._bus.publish(self._requests.name, self._message(request))
                return await result
        finally:
            del self._waiting[evaluation_id]
            self._ended.add(evaluation_id)

    def _message(self, request: EvaluationRequest) -> Message:
        envelope = EvaluationRequested(
            # A request that is published twice is the same message both times.
            id=request.evaluation_id,
            source=f"spica/coordinator/{self._coordinator}",
            subject=request.evaluation_id,
            data=request,
        )
        body = envelope.model_dump_json().encode()
        return Message(body, envelope.id, envelope.type, reply_to=self._results.name)

    async def _receive(self, prefetch: int) -> None:
        async with self._bus.consume(self._results.name, prefetch=prefetch) as consumer:
            async for delivery in consumer:
                await self._take(delivery)

    async def _take(self, delivery: Delivery) -> None:
        try:
            envelope = EvaluationCompleted.model_validate_json(delivery.message.body)
        except ValidationError as error:
            self._discard(Discarded.MALFORMED, error=f"{error.error_count()} errors")
            self._fail_subject(delivery.message.body, error)
            await delivery.nack(requeue=False)
            return
        result = envelope.data
        waiting = self._waiting.get(result.evaluation_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(result)
        elif waiting is not None or result.evaluation_id in self._ended:
            self._discard(Discarded.LATE, evaluation=result.evaluation_id)
        else:
            self._discard(Discarded.UNKNOWN, evaluation=result.evaluation_id)
        await delivery.ack()

    def _fail_subject(self, body: bytes, error: ValidationError) -> None:
        """End the evaluation that an unreadable result is about: there will be no other."""
        try:
            evaluation_id = EnvelopeSubject.model_validate_json(body).subject
        except ValidationError:
            return
        waiting = self._waiting.get(evaluation_id)
        if waiting is None or waiting.done():
            return
        first = error.errors(include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        waiting.set_result(
            EvaluationResult(
                evaluation_id=evaluation_id,
                sweep_id=self._coordinator,
                worker="unknown",
                measurement=Measurement(
                    outcome="failed",
                    cause="result_malformed",
                    detail=f"the worker's result cannot be read: {where}: {first['msg']}",
                ),
                wall_seconds=0.0,
            )
        )

    def _discard(self, reason: Discarded, **context: str) -> None:
        self.discarded[reason] += 1
        # One line per kind: whoever sends one such message may send thousands.
        if self.discarded[reason] == 1:
            log.warning(
                "coordinator.result_discarded", reason=reason, type=EVALUATION_COMPLETED, **context
            )
