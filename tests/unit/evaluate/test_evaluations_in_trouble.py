"""Requests that get lost, queues that vanish, a bus that fails, and the end before the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.asking import REQUESTS, RESULTS, completed, opened, request, send
from support.lossy import at, status
from support.virtual_time import run_in_virtual_time

from schemas.control import ROLL_CALL, SWEEP_CANCELLED, RollCalled, SweepCancelled
from schemas.events import EvaluationStart, EvaluationStarted, WorkerHeartbeat
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import (
    AccessRefusedError,
    BusError,
    BusUnavailableError,
    Consumer,
    Delivery,
    DeliveryLostError,
    Message,
    QueueNotFoundError,
    QueueSpec,
    QueueStatus,
)
from spica_async.bus.topology import (
    DEAD_QUEUE,
    EVALUATION_STARTED_TOPIC,
    WORKER_HEARTBEAT_TOPIC,
    exists,
    requests_queue,
    results_queue,
)
from spica_async.errors import SpicaError, first_cause
from spica_async.evaluate.fleet import Fleet, FleetView
from spica_async.evaluate.in_flight import (
    LOST_AFTER_SECONDS,
    WATCH_SECONDS,
    EvaluationGivenUpError,
    Evaluations,
)
from spica_async.evaluate.messages import acknowledge

SOON_SECONDS = 2 * WATCH_SECONDS
"""Before anything would be missed for lack of heartbeats."""
SILENT_SECONDS = 40.0
"""Of a worker that is not known to be there any more."""


async def beat(bus: MemoryBus, second: float, *evaluations: str, **changes: Any) -> None:
    data = status("w", evaluations=list(evaluations)).model_copy(update=changes)
    event = WorkerHeartbeat(source="w", time=at(second), data=data)
    await bus.publish_event(WORKER_HEARTBEAT_TOPIC, Message.of(event))


async def start(bus: MemoryBus, evaluation: str) -> None:
    data = EvaluationStart(evaluation_id=evaluation, sweep_id="sweep", worker="w", slot=0)
    event = EvaluationStarted(source="w", data=data)
    await bus.publish_event(EVALUATION_STARTED_TOPIC, Message.of(event))


async def waiting_since(requests: Consumer) -> tuple[Message, float]:
    """The next request, and when it came."""
    delivery = await anext(aiter(requests))
    return delivery.message, asyncio.get_running_loop().time()


def test_a_request_that_is_nowhere_is_sent_again_as_it_was_ever_more_seldom() -> None:
    async def main() -> list[float]:
        bus = MemoryBus()
        async with opened(bus) as (evaluations, requests), asyncio.TaskGroup() as group:
            asked = group.create_task(evaluations.evaluate(request()))
            seen = [await waiting_since(requests) for _ in range(4)]
            await send(bus, completed())
            await asked
            assert len({message.body for message, _ in seen}) == 1
            assert {message.message_id for message, _ in seen} == {"one"}
            assert evaluations.resent == 3
            return [when for _, when in seen]

    assert run_in_virtual_time(main()) == [0.0, 35.0, 100.0, 225.0]


def test_a_request_that_a_worker_holds_or_that_waits_in_the_queue_is_not() -> None:
    async def main() -> None:
        bus = MemoryBus()
        async with opened(bus, parallel=1) as (evaluations, requests):
            first = asyncio.ensure_future(evaluations.evaluate(request("held")))
            await anext(requests)
            await start(bus, "held")
            for second in range(0, 500, 10):
                await beat(bus, second, "held")
                await asyncio.sleep(10)
            await send(bus, completed("held"))
            await first
            await requests.stop()
            second_asked = asyncio.ensure_future(evaluations.evaluate(request("queued")))
            await asyncio.sleep(500)
            assert evaluations.resent == 0
            await send(bus, completed("queued"))
            await second_asked

    run_in_virtual_time(main())


def test_while_the_bus_takes_nothing_workers_cannot_say_what_they_hold() -> None:
    class BlockedBus(MemoryBus):
        blocked_seconds = 0.0

        async def publish(self, queue: str, message: Message) -> None:
            await asyncio.sleep(self.blocked_seconds)
            await super().publish(queue, message)

    async def main() -> int:
        bus = BlockedBus()
        async with opened(bus) as (evaluations, requests), asyncio.TaskGroup() as group:
            asked = [group.create_task(evaluations.evaluate(request(name))) for name in "abcd"]
            for _ in asked:
                await anext(requests)
            await beat(bus, 0, *"abcd")
            # No heartbeats for two minutes, and nothing of ours goes out either.
            bus.blocked_seconds = 120.0
            await asyncio.sleep(150)
            bus.blocked_seconds = 0.0
            for second in range(150, 250, 10):
                await beat(bus, second, *"abcd")
                await asyncio.sleep(10)
            for name in "abcd":
                await send(bus, completed(name))
            await asyncio.wait(asked)
            return evaluations.resent

    assert run_in_virtual_time(main()) == 1


def test_queues_are_declared_again_only_after_consumers_have_heard_of_the_deletion() -> None:
    async def main() -> float:
        bus = MemoryBus()
        async with opened(bus):
            await bus.delete_queue(REQUESTS)
            while not await exists(bus, requests_queue("engine")):  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.1)
            return asyncio.get_running_loop().time() - WATCH_SECONDS

    assert run_in_virtual_time(main()) >= 1.0


def test_requests_of_a_deleted_queue_are_sent_again_but_for_those_that_are_held() -> None:
    async def main() -> None:
        bus = MemoryBus()
        async with opened(bus) as (evaluations, requests), asyncio.TaskGroup() as group:
            asked = [group.create_task(evaluations.evaluate(request(name))) for name in "abc"]
            for _ in asked:
                await anext(requests)
            await beat(bus, 0, "b")
            await bus.delete_queue(REQUESTS)
            again = [(await waiting_since(requests))[0].message_id for _ in range(2)]
            assert asyncio.get_running_loop().time() < SOON_SECONDS
            assert again == ["a", "c"]
            assert evaluations.resent == 2
            for name in "abc":
                await send(bus, completed(name))

    with capture_logs() as events:
        run_in_virtual_time(main())
    assert [event["event"] for event in events] == [
        "coordinator.queues_missing",
        "coordinator.requests_sent_again",
    ]


def test_what_a_silent_worker_held_is_not_taken_to_be_lost_with_the_queue() -> None:
    async def main() -> list[float]:
        bus = MemoryBus()
        came: list[float] = []

        async def take(requests: Consumer) -> Delivery:
            delivery = await anext(aiter(requests))
            came.append(asyncio.get_running_loop().time())
            return delivery

        async with (
            Evaluations(
                bus, Fleet("engine"), coordinator="sweep", parallel=3
            ).open() as evaluations,
            bus.consume(REQUESTS, prefetch=1) as requests,
            asyncio.TaskGroup() as group,
        ):
            for name in "abc":
                group.create_task(evaluations.evaluate(request(name)))
            held = await take(requests)
            await beat(bus, 0, "a")
            await asyncio.sleep(SILENT_SECONDS)
            assert evaluations.resent == 0
            await bus.delete_queue(REQUESTS)
            came.append(asyncio.get_running_loop().time())
            with pytest.raises(DeliveryLostError):
                await held.ack()
            for name in "bc":
                delivery = await take(requests)
                assert delivery.message.message_id == name
                assert evaluations.resent == 2
                await send(bus, completed(name))
                await delivery.ack()
            # Of that worker nothing more is heard.
            assert (await take(requests)).message.message_id == "a"
            await send(bus, completed("a"))
        return came

    _, deleted, _, again, at_last = run_in_virtual_time(main())
    assert again - deleted < SOON_SECONDS
    assert LOST_AFTER_SECONDS <= at_last - deleted < LOST_AFTER_SECONDS + 2 * SOON_SECONDS


class DistantBus(MemoryBus):
    """Everything takes a moment, and others go on meanwhile."""

    async def declare_queue(self, spec: QueueSpec) -> None:
        await asyncio.sleep(0.001)
        await super().declare_queue(spec)

    async def queue_status(self, queue: str) -> QueueStatus:
        await asyncio.sleep(0.001)
        return await super().queue_status(queue)

    async def publish(self, queue: str, message: Message) -> None:
        await asyncio.sleep(0.001)
        await super().publish(queue, message)
        if queue == REQUESTS:
            await asyncio.sleep(0.01)


def test_what_has_ended_is_not_sent_again() -> None:
    async def main() -> None:
        bus = DistantBus()
        async with opened(bus) as (evaluations, requests):
            asked = asyncio.ensure_future(evaluations.evaluate(request()))
            await anext(requests)
            await anext(requests)  # And while this is being published, the result comes.
            await send(bus, completed())
            await asked
            await asyncio.sleep(1000)
            assert evaluations.resent == 1
            await bus.delete_queue(REQUESTS)
            await asyncio.sleep(1000)
            assert evaluations.resent == 1

    run_in_virtual_time(main())


def test_publishing_to_a_deleted_queue_declares_it_again_without_waiting_for_the_watch() -> None:
    async def main() -> None:
        bus = DistantBus()
        async with opened(bus) as (evaluations, requests), asyncio.TaskGroup() as group:
            for queue in (REQUESTS, RESULTS, DEAD_QUEUE.name):
                await bus.delete_queue(queue)
            names = [f"e{number}" for number in range(4)]
            asked = [group.create_task(evaluations.evaluate(request(name))) for name in names]
            taken = {(await waiting_since(requests))[0].message_id for _ in names}
            assert asyncio.get_running_loop().time() < WATCH_SECONDS
            assert taken == set(names)
            for name in names:
                await send(bus, completed(name))
            assert [(await task).evaluation_id for task in asked] == names
            # Dead letters are still taken.
            last = group.create_task(evaluations.evaluate(request("last")))
            while (delivery := await anext(requests)).message.message_id != "last":
                await delivery.ack()
            await delivery.nack(requeue=False)
            assert (await last).measurement.cause == "request_refused"

    with capture_logs() as events:
        run_in_virtual_time(main())
    (missing,) = [e for e in events if e["event"] == "coordinator.queues_missing"]
    assert missing["queues"] == [DEAD_QUEUE.name, REQUESTS, RESULTS]


class VanishingBus(MemoryBus):
    """Somebody deletes the requests' queue whenever it is declared."""

    vanishes = False

    async def declare_queue(self, spec: QueueSpec) -> None:
        await super().declare_queue(spec)
        if self.vanishes:
            await self.delete_queue(REQUESTS)


def test_a_queue_that_is_deleted_as_often_as_it_is_declared_ends_it() -> None:
    async def main() -> None:
        bus = VanishingBus()
        async with opened(bus) as (evaluations, _):
            bus.vanishes = True
            await bus.delete_queue(REQUESTS)
            with pytest.raises(SpicaError, match="deleted as often as it is declared"):
                await evaluations.evaluate(request())

    with capture_logs():
        run_in_virtual_time(main())


def test_a_queue_that_somebody_has_declared_otherwise_is_an_error_at_once() -> None:
    async def main() -> None:
        bus = MemoryBus()
        await bus.declare_queue(QueueSpec(REQUESTS))
        async with opened(bus):
            raise AssertionError("it was opened")

    with pytest.raises(SpicaError, match="a queue exists with other arguments than ours"):
        run_in_virtual_time(main())


def test_a_queue_that_comes_back_otherwise_is_an_error_too() -> None:
    async def main() -> None:
        bus = MemoryBus()
        async with opened(bus):
            await bus.delete_queue(RESULTS)
            await bus.delete_queue(REQUESTS)
            await bus.declare_queue(QueueSpec(REQUESTS))
            await asyncio.sleep(100)

    with capture_logs(), pytest.raises(ExceptionGroup) as caught:
        run_in_virtual_time(main())
    cause = first_cause(caught.value)
    assert isinstance(cause, SpicaError)
    assert "other arguments than ours" in str(cause)


class LeastRightsBus(MemoryBus):
    """Whose user may declare nothing: what is missing stays so until the operator comes."""

    async def declare_queue(self, spec: QueueSpec) -> None:
        if spec.name not in self._queues:
            raise AccessRefusedError(f"queue {spec.name} does not exist")

    async def operator_declares(self, *specs: QueueSpec) -> None:
        for spec in specs:
            await super().declare_queue(spec)


def test_a_missing_queue_that_may_not_be_declared_says_what_to_do() -> None:
    async def main() -> None:
        async with opened(LeastRightsBus()):
            raise AssertionError("it was opened")

    with pytest.raises(SpicaError, match="`spica-async topology declare`"):
        run_in_virtual_time(main())


def test_a_deleted_queue_that_may_not_be_declared_is_waited_for() -> None:
    async def main() -> None:
        bus = LeastRightsBus()
        await bus.operator_declares(DEAD_QUEUE, requests_queue("engine"), results_queue("sweep"))
        views: list[FleetView] = []
        async with (
            opened(bus, on_fleet=views.append) as (evaluations, requests),
            asyncio.TaskGroup() as group,
        ):
            early = group.create_task(evaluations.evaluate(request("early")))
            await anext(requests)
            await bus.delete_queue(REQUESTS)
            await asyncio.sleep(SOON_SECONDS)
            # It does not fail either.
            late = group.create_task(evaluations.evaluate(request("late")))
            await asyncio.sleep(SOON_SECONDS)
            assert views[-1].waiting_for is not None
            assert "`spica-async topology declare`" in views[-1].waiting_for
            await bus.operator_declares(requests_queue("engine"))
            came = {(await waiting_since(requests))[0].message_id for _ in range(2)}
            assert came == {"early", "late"}
            await send(bus, completed("early"))
            await send(bus, completed("late"))
            await asyncio.wait([early, late])
            await asyncio.sleep(SOON_SECONDS)
            assert "topology" not in (views[-1].waiting_for or "")

    run_in_virtual_time(main())


class FailingBus(MemoryBus):
    """Fails from a moment on, and notes what is still asked of it."""

    error: BusError | None = None

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def fail(self, verb: str) -> None:
        if self.error is not None:
            self.asked.append(verb)
            raise self.error

    async def publish(self, queue: str, message: Message) -> None:
        self.fail("publish")
        await super().publish(queue, message)

    async def broadcast(self, message: Message) -> None:
        self.fail("broadcast")
        await super().broadcast(message)

    async def delete_queue(self, queue: str) -> None:
        self.fail("delete_queue")
        await super().delete_queue(queue)


def test_a_bus_that_cannot_be_reached_ends_it_without_announcing_it() -> None:
    bus = FailingBus()

    async def main() -> None:
        async with opened(bus) as (evaluations, _):
            bus.error = BusUnavailableError("no answer for 600 s")
            await evaluations.evaluate(request())

    with pytest.raises(ExceptionGroup) as caught:
        run_in_virtual_time(main())
    assert caught.group_contains(BusUnavailableError)
    assert bus.asked == ["publish"]


def test_to_fail_to_announce_the_end_is_no_error() -> None:
    bus = FailingBus()

    async def main() -> None:
        async with opened(bus):
            bus.error = BusUnavailableError("no answer for 600 s")

    with capture_logs() as events:
        run_in_virtual_time(main())
    assert [event["event"] for event in events] == ["coordinator.left_without_goodbye"]


class HangingBus(MemoryBus):
    hangs = False

    async def delete_queue(self, queue: str) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        await super().delete_queue(queue)


def test_an_announced_end_that_is_not_answered_is_soon_given_up() -> None:
    async def main() -> float:
        bus = HangingBus()
        async with opened(bus):
            bus.hangs = True
        return asyncio.get_running_loop().time()

    with capture_logs() as events:
        assert run_in_virtual_time(main()) == 5.0
    assert [event["event"] for event in events] == ["coordinator.left_without_goodbye"]


async def test_an_acknowledgement_that_comes_too_late_is_no_error() -> None:
    bus = MemoryBus()
    await bus.declare_queue(DEAD_QUEUE)
    await bus.publish(DEAD_QUEUE.name, Message(b"", "m", "t"))
    async with bus.consume(DEAD_QUEUE.name, prefetch=1) as consumer:
        delivery = await anext(aiter(consumer))
        await bus.delete_queue(DEAD_QUEUE.name)
        with pytest.raises(DeliveryLostError):
            await delivery.ack()
        await acknowledge(delivery)


async def hear(listening: AsyncIterator[Message], messages: list[Message]) -> None:
    async for message in listening:
        messages.append(message)  # noqa: PERF401  # each is there as soon as it was heard


def test_workers_are_called_at_the_beginning_and_dismissed_at_the_end() -> None:
    async def main() -> list[Message]:
        bus = MemoryBus()
        messages: list[Message] = []
        async with bus.listen() as listening, asyncio.TaskGroup() as group:
            listener = group.create_task(hear(listening, messages))
            async with opened(bus):
                pass
            await asyncio.sleep(0)
            listener.cancel()
        with pytest.raises(QueueNotFoundError):
            await bus.queue_status(RESULTS)
        assert (await bus.queue_status(REQUESTS)).ready == 0
        return messages

    called, dismissed = run_in_virtual_time(main())
    assert (called.type, dismissed.type) == (ROLL_CALL, SWEEP_CANCELLED)
    assert RollCalled.model_validate_json(called.body).data.coordinator == "sweep"
    cancellation = SweepCancelled.model_validate_json(dismissed.body).data
    assert (cancellation.sweep_id, cancellation.grace_seconds) == ("sweep", 0.0)


def test_cancelling_gives_up_all_but_what_runs() -> None:
    async def main() -> None:
        bus = MemoryBus()
        messages: list[Message] = []
        async with (
            bus.listen() as listening,
            opened(bus, parallel=2) as (evaluations, requests),
            asyncio.TaskGroup() as group,
        ):
            listener = group.create_task(hear(listening, messages))
            names = ("runs", "queued", "no turn")
            asked = [asyncio.ensure_future(evaluations.evaluate(request(name))) for name in names]
            for _ in range(2):
                await anext(requests)
            await start(bus, "runs")
            await asyncio.sleep(1)
            await evaluations.cancel(grace_seconds=7.0)
            with pytest.raises(EvaluationGivenUpError):
                await asked[1]
            with pytest.raises(EvaluationGivenUpError):
                await evaluations.evaluate(request("too late"))
            await bus.delete_queue(REQUESTS)
            await asyncio.sleep(1000)
            # Declared again, and yet nothing is sent again or anew.
            assert (await bus.queue_status(REQUESTS)).ready == 0
            assert evaluations.resent == 0
            await send(bus, completed("runs"))
            assert (await asked[0]).worker == "w"
            with pytest.raises(EvaluationGivenUpError):
                await asked[2]
            await send(bus, completed("queued"))
            await asyncio.sleep(1)
            assert evaluations.discarded == {"late": 1}
            listener.cancel()
        cancellation = SweepCancelled.model_validate_json(messages[-1].body).data
        assert (cancellation.sweep_id, cancellation.grace_seconds) == ("sweep", 7.0)

    with capture_logs():
        run_in_virtual_time(main())


def test_the_workers_are_shown_as_they_come_work_and_go() -> None:
    views: list[FleetView] = []

    async def main() -> None:
        bus = MemoryBus()
        async with opened(bus, on_fleet=views.append) as (evaluations, requests):
            await asyncio.sleep(100)
            assert [view.waiting_for for view in views] == [
                "no worker with engine engine is connected"
            ]
            asked = asyncio.ensure_future(evaluations.evaluate(request()))
            await anext(requests)
            await beat(bus, 0, "one", slots=2)
            await asyncio.sleep(1)
            await send(bus, completed())
            await asked
            await asyncio.sleep(100)
            counts = [(len(view.workers), view.slots, view.busy) for view in views]
            assert counts == [(0, 0, 0), (1, 2, 1), (1, 2, 0), (0, 0, 0)]

    run_in_virtual_time(main())


def test_of_thousands_of_odd_events_one_of_each_kind_is_logged() -> None:
    async def main() -> Evaluations:
        bus = MemoryBus()
        async with opened(bus) as (evaluations, _):
            for number in range(10_000):
                kind = "spica.worker.heartbeat.v1" if number % 2 else "nonsense"
                await bus.publish_event(WORKER_HEARTBEAT_TOPIC, Message(b"{}", "m", kind))
            await asyncio.sleep(1)
        return evaluations

    with capture_logs() as events:
        evaluations = run_in_virtual_time(main())
    assert evaluations.warnings.kinds("event_ignored") == {"malformed": 5000, "unknown_type": 5000}
    assert [event["event"] for event in events] == ["coordinator.event_ignored"] * 3
