"""A worker that does all that goes wrong between coordinator and workers, by a script."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from schemas.control import ROLL_CALL
from schemas.envelope import Envelope
from schemas.events import (
    EvaluationStart,
    EvaluationStarted,
    WorkerHeartbeat,
    WorkerState,
    WorkerStatus,
)
from schemas.messages import (
    EvaluationCompleted,
    EvaluationRequested,
    EvaluationResult,
    Measurement,
    Sample,
)
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import (
    AlreadySettledError,
    Consumer,
    Delivery,
    DeliveryLostError,
    Message,
    QueueNotFoundError,
    UnroutableError,
)
from spica_async.bus.topology import (
    DEAD_QUEUE,
    EVALUATION_STARTED_TOPIC,
    WORKER_HEARTBEAT_TOPIC,
    requests_queue,
)

INTERVAL_SECONDS = 10.0
GARBAGE = b'{"specversion": "1.0", "type": "nonsense"}'


class Fault(Enum):
    """What becomes of one request that is taken."""

    NONE = "none"
    SLOW = "slow"
    """It runs for minutes; heartbeats go on."""
    TWICE = "twice"
    """Its result is sent twice."""
    UNACKNOWLEDGED = "unacknowledged"
    """Its result is sent, and the request comes back all the same."""
    SWALLOWED = "swallowed"
    """It is acknowledged and nothing comes of it."""
    GIVEN_BACK = "given_back"
    POISONOUS = "poisonous"
    """Each consumer gives it back, until the bus has enough of it."""
    CRASHED = "crashed"
    """The worker is gone without a word; another takes its place."""
    STALLED = "stalled"
    """The worker says nothing for minutes, and then sends a result."""
    REQUESTS_DELETED = "requests_deleted"
    REQUESTS_REPLACED = "requests_replaced"
    """Deleted, and declared by somebody else before we look."""
    RESULTS_DELETED = "results_deleted"
    DEAD_LETTERS_DELETED = "dead_letters_deleted"
    GARBAGE = "garbage"
    """On every queue, and beside it the honest answer."""


UNANSWERED = {Fault.SWALLOWED, Fault.GIVEN_BACK, Fault.POISONOUS, Fault.CRASHED}
BREAKING = {
    Fault.REQUESTS_DELETED,
    Fault.REQUESTS_REPLACED,
    Fault.RESULTS_DELETED,
    Fault.DEAD_LETTERS_DELETED,
    Fault.GARBAGE,
}


@dataclass
class LossyWorker:
    """Takes one request after another; what becomes of each is next in the script, then honest."""

    bus: MemoryBus
    name: str
    script: Iterator[Fault]
    measure: Callable[[Sample], Measurement]
    served: Counter[str] = field(default_factory=Counter)
    poisonous: set[str] = field(default_factory=set)
    silent: bool = False
    held: list[str] = field(default_factory=list)
    generation: int = 0

    @property
    def source(self) -> str:
        return f"{self.name}-{self.generation}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group, self.bus.listen() as heard:
            tasks = [
                group.create_task(self.work()),
                group.create_task(self.beat()),
                group.create_task(self.answer_roll_calls(heard)),
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def work(self) -> None:
        while True:
            try:
                async with self.bus.consume(requests_queue("engine").name, prefetch=1) as consumer:
                    await self.serve(consumer)
            except QueueNotFoundError:
                await asyncio.sleep(1)
            # It crashed, and comes back as another one.
            self.generation += 1
            self.held.clear()

    async def serve(self, consumer: Consumer) -> None:
        async for delivery in consumer:
            body = delivery.message.body
            if body == GARBAGE:
                await delivery.nack(requeue=False)
                continue
            request = EvaluationRequested.model_validate_json(body).data
            self.held.append(request.evaluation_id)
            await self.publish_start(request.evaluation_id)
            self.served[request.evaluation_id] += 1
            fault = next(self.script, Fault.NONE)
            if request.evaluation_id in self.poisonous:
                fault = Fault.POISONOUS
            with suppress(DeliveryLostError, AlreadySettledError):
                await self.suffer(fault, delivery)
            if fault is Fault.CRASHED:
                return
            self.held.remove(request.evaluation_id)

    async def suffer(self, fault: Fault, delivery: Delivery) -> None:
        if fault in UNANSWERED:
            await self.leave_unanswered(fault, delivery)
            return
        if fault in BREAKING:
            await self.break_queues(fault, delivery.message.reply_to or "")
        self.silent = fault is Fault.STALLED
        if fault in {Fault.SLOW, Fault.STALLED}:
            await asyncio.sleep(300)
        self.silent = False
        await self.answer(delivery)
        if fault is Fault.TWICE:
            await self.answer(delivery)
        if fault is Fault.UNACKNOWLEDGED:
            await delivery.nack(requeue=True)
        else:
            await delivery.ack()

    async def leave_unanswered(self, fault: Fault, delivery: Delivery) -> None:
        if fault is Fault.POISONOUS:
            self.poisonous.add(delivery.message.message_id)
        if fault is Fault.SWALLOWED:
            await delivery.ack()
        elif fault is not Fault.CRASHED:
            await delivery.nack(requeue=True)

    async def break_queues(self, fault: Fault, results: str) -> None:
        requests = requests_queue("engine")
        match fault:
            case Fault.RESULTS_DELETED:
                await self.bus.delete_queue(results)
            case Fault.DEAD_LETTERS_DELETED:
                await self.bus.delete_queue(DEAD_QUEUE.name)
            case Fault.GARBAGE:
                await self.litter(requests.name, results, DEAD_QUEUE.name)
            case _:
                await self.bus.delete_queue(requests.name)
        if fault is Fault.REQUESTS_REPLACED:
            with suppress(QueueNotFoundError):
                await self.bus.declare_queue(requests)

    async def litter(self, *queues: str) -> None:
        for queue in queues:
            with suppress(UnroutableError):
                await self.bus.publish(queue, Message(GARBAGE, "g", "nonsense", queue))
        await self.bus.publish_event(WORKER_HEARTBEAT_TOPIC, Message(GARBAGE, "g", "nonsense"))

    async def answer(self, delivery: Delivery) -> None:
        await asyncio.sleep(1)
        request = EvaluationRequested.model_validate_json(delivery.message.body).data
        result = EvaluationResult(
            evaluation_id=request.evaluation_id,
            sweep_id=request.sweep_id,
            worker=self.source,
            measurement=self.measure(request.sample),
            wall_seconds=1.0,
        )
        message = Message.of(
            EvaluationCompleted(id=request.evaluation_id, source=self.source, data=result)
        )
        assert delivery.message.reply_to is not None
        # A worker drops what nobody waits for: the request is acknowledged in any case.
        with suppress(UnroutableError):
            await self.bus.publish(delivery.message.reply_to, message)

    async def beat(self) -> None:
        while True:
            await self.heartbeat()
            await asyncio.sleep(INTERVAL_SECONDS)

    async def answer_roll_calls(self, heard: AsyncIterator[Message]) -> None:
        async for message in heard:
            if message.type == ROLL_CALL:
                await self.heartbeat()

    async def heartbeat(self) -> None:
        data = status(self.source, evaluations=list(self.held))
        await self.publish(WORKER_HEARTBEAT_TOPIC, WorkerHeartbeat(source=self.source, data=data))

    async def publish_start(self, evaluation_id: str) -> None:
        data = EvaluationStart(
            evaluation_id=evaluation_id, sweep_id="sweep", worker=self.source, slot=0
        )
        await self.publish(
            EVALUATION_STARTED_TOPIC, EvaluationStarted(source=self.source, data=data)
        )

    async def publish(self, topic: str, envelope: Envelope[Any]) -> None:
        if not self.silent:
            await self.bus.publish_event(topic, Message.of(envelope))


def status(
    worker: str,
    *,
    evaluations: list[str] | None = None,
    engine: str = "engine",
    versions: dict[str, str] | None = None,
    state: WorkerState = "ready",
    slots: int = 1,
    trouble: str | None = None,
) -> WorkerStatus:
    """A worker as it publishes itself."""
    return WorkerStatus(
        worker=worker,
        host="host",
        pid=1,
        engine_fingerprint=engine,
        versions=versions or {},
        state=state,
        slots=slots,
        evaluations=evaluations or [],
        trouble=trouble,
        interval_seconds=INTERVAL_SECONDS,
    )


def at(seconds: float) -> datetime:
    """A moment by the workers' clock."""
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def scripts(faults: list[Fault], workers: int) -> list[Iterator[Fault]]:
    """The faults, dealt out in turn."""
    return [iter(faults[first::workers]) for first in range(workers)]
