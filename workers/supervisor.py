"""The worker's one loop: takes requests from the bus, has slots evaluate them, publishes results.

A request is acknowledged only after its result is with the bus. So whatever goes wrong in between,
a request may be evaluated twice but is never lost.
"""

from __future__ import annotations

import asyncio
import os
import pkgutil
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

import structlog

from schemas.envelope import Envelope
from schemas.events import EvaluationStart, EvaluationStarted
from schemas.messages import (
    EvaluationCompleted,
    EvaluationRequest,
    EvaluationResult,
    Measurement,
    SyntheticLoad,
    TraceLoad,
)
from spica_async.bus.port import (
    Bus,
    Consumer,
    Delivery,
    DeliveryLostError,
    Message,
    UnroutableError,
)
from spica_async.bus.topology import EVALUATION_STARTED_TOPIC, requests_queue
from workers.process import ChildStartError
from workers.requests import AddressedRequest, Malformation, MalformedRequestError, parse_request
from workers.settings import ChildSettings, default_slots, memory_share
from workers.slot import Slot, SlotOutcome, SlotStatistics, mebibytes

FootprintEstimator = Callable[[TraceLoad | SyntheticLoad], int]
"""Tells the bytes of memory that a replay of a load will need."""

_FOOTPRINT_ESTIMATOR = "spica_async.engine.footprint:estimate_bytes"

log = structlog.get_logger(__name__)


class Supervisor:
    """Evaluates requests for one engine in a fixed number of slots.

    `run` does it all and ends after `stop`; to cancel `run` is to abort: children are killed at
    once and their requests given back.

    Args:
        bus: where requests come from and results go to; the requests' queue must be declared.
        engine_fingerprint: of the engine that the children have; names the queue.
        slots: how many evaluations may run at once; by default one per core.
        name: stands in results and events; by default host and process id.
        children: how children are started and ended.
        memory_limit_bytes: per slot; by default an equal share of what is available now.
        estimate_bytes: by default the engine's own estimator.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        engine_fingerprint: str,
        slots: int | None = None,
        name: str | None = None,
        children: ChildSettings | None = None,
        memory_limit_bytes: int | None = None,
        estimate_bytes: FootprintEstimator | None = None,
    ) -> None:
        count = default_slots() if slots is None else slots
        if count < 1:
            raise ValueError(f"slots is {count}, below 1")
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._bus = bus
        self._queue = requests_queue(engine_fingerprint).name
        self._memory_limit_bytes = (
            memory_share(count) if memory_limit_bytes is None else memory_limit_bytes
        )
        self._estimate_bytes: FootprintEstimator = estimate_bytes or pkgutil.resolve_name(
            _FOOTPRINT_ESTIMATOR
        )
        settings = children or ChildSettings()
        self._slots = tuple(
            Slot(index, settings, self._memory_limit_bytes) for index in range(count)
        )
        self._working: set[int] = set()
        self._retired = 0
        self._malformed: Counter[Malformation] = Counter()
        self._has_run = False
        self._drain_seconds = 0.0
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._log = log.bind(worker=self.name)

    @property
    def statistics(self) -> tuple[SlotStatistics, ...]:
        """What each slot has done so far."""
        return tuple(slot.statistics for slot in self._slots)

    @property
    def malformed(self) -> Mapping[Malformation, int]:
        """How many messages were dead-lettered unread, by what was wrong with them."""
        return dict(self._malformed)

    async def run(self) -> None:
        """Consume and evaluate until `stop` is called; may run once.

        Raises:
            QueueNotFoundError: the requests' queue is not declared.
            ExceptionGroup: holds the `ChildStartError` of the last slot that could not start its
                child (earlier ones retire), or what the bus raised when it could not take a
                result. Requests have been given back.
        """
        if self._has_run:
            raise RuntimeError("a supervisor runs once")
        self._has_run = True
        try:
            async with self._bus.consume(self._queue, prefetch=len(self._slots)) as consumer:
                self._log.info("worker.started", slots=len(self._slots), queue=self._queue)
                try:
                    await self._run_slots(consumer)
                finally:
                    # Before the consumer gives back what they were working on.
                    await self._close_slots()
        finally:
            self._ended.set()
            self._log.info("worker.ended", malformed=dict(self._malformed))

    async def stop(self, drain_seconds: float) -> None:
        """Take nothing new, let evaluations go on for so long, give back the rest; then end.

        Returns when `run` has cleaned up.
        """
        self._drain_seconds = drain_seconds
        self._stopping.set()
        await self._ended.wait()

    async def _run_slots(self, consumer: Consumer) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._run_slot(slot, consumer)) for slot in self._slots]
                await self._stopping.wait()
                await self._drain(tasks, consumer)
        except* _StoppedError:
            pass

    async def _drain(self, tasks: Sequence[asyncio.Task[None]], consumer: Consumer) -> NoReturn:
        await consumer.stop()
        busy = [tasks[index] for index in self._working]
        idle = [task for task in tasks if task not in busy]
        for task in idle:
            task.cancel()
        if busy:
            await asyncio.wait(busy, timeout=self._drain_seconds)
        # These first: a second cancellation would disturb the end of a child's start.
        if idle:
            await asyncio.wait(idle)
        # The way to cancel what is left in a task group.
        raise _StoppedError

    async def _run_slot(self, slot: Slot, consumer: Consumer) -> None:
        try:
            await self._serve(slot, consumer)
        except ChildStartError as error:
            self._retired += 1
            if self._retired == len(self._slots):
                raise
            # The others go on: one child more may be just what the machine has no room for.
            self._log.error("worker.slot_retired", slot=slot.index, error=str(error))

    async def _serve(self, slot: Slot, consumer: Consumer) -> None:
        await slot.start()
        async for delivery in consumer:
            self._working.add(slot.index)
            try:
                await self._handle(slot, delivery)
            except ChildStartError:
                await self._settle(delivery.nack(requeue=True))
                raise
            finally:
                self._working.remove(slot.index)
            if self._stopping.is_set():
                return
            # Now, not with the next request: a new child gets warm while no request waits for it.
            await slot.start()

    async def _handle(self, slot: Slot, delivery: Delivery) -> None:
        try:
            addressed = parse_request(delivery.message)
        except MalformedRequestError as error:
            self._count_malformed(error)
            await self._settle(delivery.nack(requeue=False))
            return
        result = await self._evaluate(slot, addressed.request)
        try:
            await self._publish_result(addressed, result)
        except UnroutableError as error:
            # Its coordinator is gone; the dead-letter queue keeps the request for the next one.
            self._log.warning("worker.result_unroutable", error=str(error))
            await self._settle(delivery.nack(requeue=False))
        else:
            await self._settle(delivery.ack())

    async def _evaluate(self, slot: Slot, request: EvaluationRequest) -> EvaluationResult:
        time = asyncio.get_running_loop().time
        began = time()
        refusal = self._refusal(request)
        if refusal is not None:
            outcome = SlotOutcome(refusal, child_deaths=0)
        else:
            await self._tell_start(slot, request)
            outcome = await slot.evaluate(request)
        return EvaluationResult(
            evaluation_id=request.evaluation_id,
            sweep_id=request.sweep_id,
            worker=self.name,
            measurement=outcome.measurement,
            child_deaths=outcome.child_deaths,
            wall_seconds=time() - began,
        )

    def _refusal(self, request: EvaluationRequest) -> Measurement | None:
        needed = self._estimate_bytes(request.load)
        if needed <= self._memory_limit_bytes:
            return None
        return Measurement(
            outcome="failed",
            cause="resource_limited",
            detail=f"{request.load.requests} requests with {request.load.total_tokens} tokens need"
            f" about {mebibytes(needed)} of memory, a slot here has"
            f" {mebibytes(self._memory_limit_bytes)}",
        )

    async def _tell_start(self, slot: Slot, request: EvaluationRequest) -> None:
        start = EvaluationStart(
            evaluation_id=request.evaluation_id,
            sweep_id=request.sweep_id,
            worker=self.name,
            slot=slot.index,
        )
        event = EvaluationStarted(source=self._source, subject=request.evaluation_id, data=start)
        await self._bus.publish_event(EVALUATION_STARTED_TOPIC, _to_message(event))

    async def _publish_result(self, addressed: AddressedRequest, result: EvaluationResult) -> None:
        completed = EvaluationCompleted(
            source=self._source, subject=result.evaluation_id, data=result
        )
        await self._bus.publish(addressed.reply_to, _to_message(completed))

    async def _settle(self, settling: Awaitable[None]) -> None:
        try:
            await settling
        except DeliveryLostError as error:
            self._log.warning("worker.delivery_lost", error=str(error))

    def _count_malformed(self, error: MalformedRequestError) -> None:
        self._malformed[error.kind] += 1
        # One line per kind: a broken producer sends many, and the count is told at the end.
        if self._malformed[error.kind] == 1:
            self._log.warning("worker.malformed_message", kind=error.kind, error=str(error))

    async def _close_slots(self) -> None:
        for slot in self._slots:
            slot.kill()
        for slot in self._slots:
            await slot.close()

    @property
    def _source(self) -> str:
        return f"spica/worker/{self.name}"


class _StoppedError(Exception):
    """Ends the task group after `stop`."""


def _to_message(envelope: Envelope[Any]) -> Message:
    return Message(envelope.model_dump_json().encode(), envelope.id, envelope.type)
