"""A supervisor over the in-memory bus, with slots that evaluate in this process as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from schemas.control import RollCall, RollCalled, SweepCancellation, SweepCancelled
from schemas.envelope import Envelope
from schemas.events import WORKER_HEARTBEAT, WorkerHeartbeat, WorkerStatus
from schemas.messages import (
    EvaluationCompleted,
    EvaluationRequest,
    EvaluationRequested,
    EvaluationResult,
    Measurement,
    SyntheticLoad,
)
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Delivery, Event, Message
from spica_async.bus.topology import declare, requests_queue, results_queue
from workers.port import ChildDeaths, SlotStatistics
from workers.settings import WorkerOptions
from workers.supervisor import Supervisor

REQUESTS = requests_queue("engine")
RESULTS = results_queue("coordinator")
WAIT_SECONDS = 20
LOAD = SyntheticLoad(isl=100, osl=10, requests=4, concurrency=2)

Behaviour = Callable[["FakeSlot", EvaluationRequest, ChildDeaths], Awaitable[Measurement]]


def feasible(**report: float) -> Measurement:
    return Measurement(outcome="feasible", report=report)


async def succeed(slot: FakeSlot, request: EvaluationRequest, deaths: ChildDeaths) -> Measurement:
    return feasible()


async def hang(slot: FakeSlot, request: EvaluationRequest, deaths: ChildDeaths) -> Measurement:
    await asyncio.Event().wait()
    raise AssertionError("nobody ends that wait but a cancellation")


def make_supervisor(bus: MemoryBus, **given: Any) -> Supervisor:
    """A worker with one slot; `given` are fields of `WorkerOptions` and arguments of its own."""
    options: dict[str, Any] = {
        "engine_fingerprint": "engine",
        "name": "here",
        "slots": 1,
        "hard_limit_seconds": None,
        "drain_seconds": 0,
    }
    arguments: dict[str, Any] = {}
    names = {field.name for field in fields(WorkerOptions)}
    for name, value in given.items():
        (options if name in names else arguments)[name] = value
    return Supervisor(bus, WorkerOptions(**options), **arguments)


class FakeSlot:
    """Does as it is commanded; its child is a flag."""

    def __init__(self, index: int, desk: Desk) -> None:
        self.index = index
        self.statistics = SlotStatistics()
        self.is_warm = False
        self.ends = 0
        self.kills = 0
        self._desk = desk

    async def start(self) -> None:
        if not self.is_warm:
            await self._desk.before_start(self)
            self.is_warm = True
            self.statistics.child_starts += 1

    async def evaluate(self, request: EvaluationRequest, deaths: ChildDeaths) -> Measurement:
        self._desk.evaluated.append(request)
        self.is_warm = False
        measurement = await self._desk.behave(self, request, deaths)
        self.is_warm = not self._desk.ends_children
        return measurement

    async def end(self) -> None:
        self.ends += 1
        self.is_warm = False

    def kill(self) -> None:
        self.kills += 1
        self.is_warm = False

    async def close(self) -> None:
        self.is_warm = False


class Desk:
    """What a test sees of one worker and may command.

    `behave` is how slots evaluate, `before_start` what happens before one gets warm, and
    `ends_children` whether each evaluation costs its child.
    """

    def __init__(self, bus: MemoryBus) -> None:
        self.bus = bus
        self.slots: list[FakeSlot] = []
        self.evaluated: list[EvaluationRequest] = []
        self.behave: Behaviour = succeed
        self.before_start: Callable[[FakeSlot], Awaitable[None]] = nothing
        self.ends_children = False
        self._ids = iter(range(1, 1_000_000))

    @property
    def evaluated_ids(self) -> list[str]:
        return [request.evaluation_id for request in self.evaluated]

    def supervisor(self, **options: Any) -> Supervisor:
        defaults: dict[str, Any] = {
            "make_slot": self._make_slot,
            "memory_limit_bytes": 2**40,
            # A test that waits for the next one hears of it within its own patience.
            "heartbeat_seconds": 1000,
        }
        return make_supervisor(self.bus, **(defaults | options))

    @asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator[Supervisor]:
        supervisor = self.supervisor(**options)
        async with asyncio.TaskGroup() as group:
            group.create_task(supervisor.run())
            yield supervisor
            supervisor.stopping.set()

    def request(self, **changes: Any) -> EvaluationRequest:
        fields: dict[str, Any] = {
            "evaluation_id": f"e{next(self._ids)}",
            "sweep_id": "sweep",
            "sample": {},
            "load": LOAD,
        }
        return EvaluationRequest(**(fields | changes))

    async def send(
        self,
        *requests: EvaluationRequest,
        reply_to: str = RESULTS.name,
        sent_at: datetime | None = None,
    ) -> None:
        for request in requests:
            envelope = EvaluationRequested(
                id=request.evaluation_id,
                source="spica/coordinator/test",
                time=sent_at or datetime.now(UTC),
                data=request,
            )
            await self.bus.publish(REQUESTS.name, Message.of(envelope, reply_to))

    async def answers(self, count: int) -> list[Delivery]:
        """Take so many messages from the results."""
        async with (
            asyncio.timeout(WAIT_SECONDS),
            self.bus.consume(RESULTS.name, prefetch=1) as consumer,
        ):
            taken = []
            for _ in range(count):
                taken.append(await anext(consumer))
                await taken[-1].ack()
            return taken

    async def results(self, count: int) -> list[EvaluationResult]:
        return [
            EvaluationCompleted.model_validate_json(delivery.message.body).data
            for delivery in await self.answers(count)
        ]

    async def cancel(self, sweep_id: str = "sweep", grace_seconds: float = 0) -> None:
        order = SweepCancellation(sweep_id=sweep_id, grace_seconds=grace_seconds)
        await self.broadcast(SweepCancelled(source="test", data=order))

    async def call_roll(self) -> None:
        await self.broadcast(RollCalled(source="test", data=RollCall(coordinator="test")))

    async def broadcast(self, envelope: Envelope[Any]) -> None:
        await self.bus.broadcast(Message.of(envelope))

    async def until(self, condition: Callable[[], Any]) -> None:
        """Let others run until the condition holds."""
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():  # noqa: ASYNC110 - the state of others, who set no events
                await asyncio.sleep(0.001)

    async def left(self) -> int:
        """How many requests wait, which are all that are not settled once the worker has ended."""
        return (await self.bus.queue_status(REQUESTS.name)).ready

    def _make_slot(self, index: int) -> FakeSlot:
        self.slots.append(FakeSlot(index, self))
        return self.slots[-1]


async def nothing(slot: FakeSlot) -> None:
    pass


async def open_desk(bus: MemoryBus | None = None) -> Desk:
    desk = Desk(bus or MemoryBus())
    await declare(desk.bus, REQUESTS, RESULTS)
    return desk


async def next_status(events: AsyncIterator[Event], **wanted: Any) -> WorkerStatus:
    """The next heartbeat's status in which the fields are as wanted."""
    async with asyncio.timeout(WAIT_SECONDS):
        async for event in events:
            if event.message.type != WORKER_HEARTBEAT:
                continue
            status = WorkerHeartbeat.model_validate_json(event.message.body).data
            if all(getattr(status, name) == value for name, value in wanted.items()):
                return status
    raise AssertionError("the events have ended")
