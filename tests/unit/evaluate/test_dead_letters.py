"""Nobody waits in vain for a request that has died, and nothing goes round in circles."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from structlog.testing import capture_logs
from support.asking import REQUESTS, RESULTS, completed, opened, request, send
from support.virtual_time import run_in_virtual_time

from schemas.messages import (
    EVALUATION_COMPLETED,
    EVALUATION_REQUESTED,
    EvaluationCompleted,
    EvaluationRequested,
)
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import (
    Consumer,
    DeadLetterReason,
    Message,
    QueueStatus,
)
from spica_async.bus.topology import (
    DEAD_QUEUE,
    DELIVERY_LIMIT,
    declare,
    requests_queue,
    results_queue,
)
from spica_async.evaluate.fleet import Fleet
from spica_async.evaluate.in_flight import Earlier, Evaluations

SOON_SECONDS = 1.0


def kinds(evaluations: Evaluations) -> dict[str, int]:
    return dict(evaluations.warnings.kinds("dead_letter_dropped"))


def others_request(name: str = "theirs") -> Message:
    envelope = EvaluationRequested(id=name, source="other", data=request(name, sweep="other"))
    return Message.of(envelope, results_queue("other").name)


async def assert_quiet(bus: MemoryBus, *queues: str) -> None:
    """Nothing is left in any of these, and nothing moves."""
    await asyncio.sleep(SOON_SECONDS)
    for queue in queues:
        assert (await bus.queue_status(queue)).ready == 0


async def give_back_until_it_dies(requests: Consumer) -> None:
    for _ in range(DELIVERY_LIMIT + 1):
        await (await anext(requests)).nack(requeue=True)


def test_a_request_that_no_worker_can_handle_fails_with_its_cause() -> None:
    async def main() -> None:
        bus = MemoryBus()
        async with opened(bus) as (evaluations, requests), asyncio.TaskGroup() as group:
            asked = group.create_task(evaluations.evaluate(request()))
            await give_back_until_it_dies(requests)
            measurement = (await asked).measurement
            assert (measurement.outcome, measurement.cause) == ("failed", "delivery_limit")
            assert measurement.detail == (
                "it was given back too often: it takes its worker down,"
                " or no worker could handle it"
            )
            await send(bus, completed())
            await assert_quiet(bus, REQUESTS, RESULTS, DEAD_QUEUE.name)
            assert evaluations.discarded == {"late": 1}
            assert kinds(evaluations) == {}

    run_in_virtual_time(main())


def test_a_request_that_a_worker_refuses_fails_with_its_cause() -> None:
    async def main() -> None:
        bus = MemoryBus()
        async with opened(bus) as (evaluations, requests), asyncio.TaskGroup() as group:
            asked = group.create_task(evaluations.evaluate(request()))
            await (await anext(requests)).nack(requeue=False)
            measurement = (await asked).measurement
            assert (measurement.outcome, measurement.cause) == ("failed", "request_refused")

    run_in_virtual_time(main())


@pytest.mark.parametrize("reason", [DeadLetterReason.EXPIRED, DeadLetterReason.MAXLEN])
def test_a_request_that_a_policy_has_dropped_is_sent_again_without_a_hurry(
    reason: DeadLetterReason,
) -> None:
    async def main() -> None:
        bus = MemoryBus()
        async with opened(bus) as (evaluations, requests), asyncio.TaskGroup() as group:
            asked = group.create_task(evaluations.evaluate(request()))
            delivery = await anext(requests)
            await delivery.ack()
            bus.let_die(REQUESTS, delivery.message, reason)
            await assert_quiet(bus, REQUESTS, DEAD_QUEUE.name)
            again = await anext(requests)
            assert again.message == delivery.message
            assert evaluations.resent == 1
            await send(bus, completed())
            await asked

    run_in_virtual_time(main())


def test_another_coordinator_hears_what_became_of_its_request() -> None:
    async def main() -> None:
        bus = MemoryBus()
        async with AsyncExitStack() as stack:
            evaluations, _ = await stack.enter_async_context(opened(bus))
            await bus.declare_queue(results_queue("other"))
            theirs = await stack.enter_async_context(
                bus.consume(results_queue("other").name, prefetch=1)
            )
            bus.let_die(REQUESTS, others_request(), DeadLetterReason.DELIVERY_LIMIT)
            message = (await anext(theirs)).message
            assert message.type == EVALUATION_COMPLETED
            result = EvaluationCompleted.model_validate_json(message.body).data
            assert (result.evaluation_id, result.sweep_id) == ("theirs", "other")
            assert result.measurement.cause == "delivery_limit"
            assert kinds(evaluations) == {}

    run_in_virtual_time(main())


def test_two_coordinators_share_the_dead_letters() -> None:
    async def main() -> None:
        bus = MemoryBus()
        async with AsyncExitStack() as stack:
            ours, requests = await stack.enter_async_context(opened(bus))
            theirs = await stack.enter_async_context(
                Evaluations(bus, Fleet("engine"), coordinator="other", parallel=20).open()
            )
            group = await stack.enter_async_context(asyncio.TaskGroup())
            asked = [
                group.create_task(side.evaluate(request(f"{sweep}{number}", sweep)))
                for side, sweep in ((ours, "sweep"), (theirs, "other"))
                for number in range(4)
            ]
            for _ in asked:
                await (await anext(requests)).nack(requeue=False)
            for task in asked:
                assert (await task).measurement.cause == "request_refused"
            assert ours.discarded == theirs.discarded == {}

    run_in_virtual_time(main())


def test_what_nobody_waits_for_ends_here_once_and_is_counted() -> None:
    async def main() -> None:
        bus = MemoryBus()
        unknown = request("unknown")
        ours = Message(
            EvaluationRequested(source="us", data=unknown).model_dump_json().encode(),
            "unknown",
            EVALUATION_REQUESTED,
            RESULTS,
        )
        huge = others_request("x" * 600_000)
        async with opened(bus) as (evaluations, _):
            bus.let_die(REQUESTS, others_request(), DeadLetterReason.REJECTED)
            bus.let_die(REQUESTS, ours, DeadLetterReason.REJECTED)
            await asyncio.sleep(SOON_SECONDS)
            await bus.declare_queue(results_queue("other"))
            bus.let_die(REQUESTS, huge, DeadLetterReason.REJECTED)
            bus.let_die(REQUESTS, others_request(), DeadLetterReason.EXPIRED)
            bus.let_die(
                REQUESTS,
                Message(b"{}", "m", EVALUATION_REQUESTED, RESULTS),
                DeadLetterReason.REJECTED,
            )
            bus.let_die(
                REQUESTS, Message(b"{}", "m", "nonsense", RESULTS), DeadLetterReason.REJECTED
            )
            no_address = Message(ours.body, "m", EVALUATION_REQUESTED)
            bus.let_die(REQUESTS, no_address, DeadLetterReason.REJECTED)
            bus.let_die(
                REQUESTS, Message(completed(), "m", EVALUATION_COMPLETED), DeadLetterReason.REJECTED
            )
            await bus.publish(DEAD_QUEUE.name, ours)
            await assert_quiet(bus, REQUESTS, RESULTS, DEAD_QUEUE.name)
            assert kinds(evaluations) == {
                "not_awaited": 3,
                "others_dropped": 1,
                "unreadable": 3,
                "result": 1,
                "never_sent": 1,
            }
            assert await bus.queue_status(DEAD_QUEUE.name) == QueueStatus(ready=0, consumers=1)

    run_in_virtual_time(main())


def test_of_thousands_of_dead_letters_one_of_each_kind_is_logged() -> None:
    async def main() -> None:
        bus = MemoryBus()
        async with opened(bus) as (evaluations, _):
            for number in range(10_000):
                message = Message(b"", str(number), "nonsense")
                if number % 2:
                    bus.let_die(REQUESTS, message, DeadLetterReason.REJECTED)
                else:
                    await bus.publish(DEAD_QUEUE.name, message)
            await assert_quiet(bus, DEAD_QUEUE.name)
            assert kinds(evaluations) == {"unreadable": 5000, "never_sent": 5000}

    with capture_logs() as events:
        run_in_virtual_time(main())
    assert [event["event"] for event in events] == ["coordinator.dead_letter_dropped"] * 3


def test_what_is_logged_of_a_message_is_short() -> None:
    async def main() -> None:
        bus = MemoryBus()
        async with opened(bus):
            bus.let_die(REQUESTS, others_request("x" * 600_000), DeadLetterReason.EXPIRED)
            await assert_quiet(bus, DEAD_QUEUE.name)

    with capture_logs() as events:
        run_in_virtual_time(main())
    assert len(str(events)) < 1000


def test_what_was_given_up_holds_up_no_dead_letters_of_others() -> None:
    """An earlier run has sent it, and nobody has asked for it again before the end."""

    async def main() -> None:
        bus = MemoryBus()
        await declare(bus, requests_queue("engine"), results_queue("sweep"))
        await bus.declare_queue(results_queue("other"))
        envelope = EvaluationRequested(id="ours", source="sweep", data=request("ours"))
        ours = Message.of(envelope, RESULTS)
        async with opened(bus, parallel=1, earlier=Earlier(2, ["ours"])) as (evaluations, _):
            await evaluations.cancel(grace_seconds=60)
            bus.let_die(REQUESTS, ours, DeadLetterReason.DELIVERY_LIMIT)
            bus.let_die(REQUESTS, others_request(), DeadLetterReason.DELIVERY_LIMIT)
            async with bus.consume(results_queue("other").name, prefetch=1) as others:
                async with asyncio.timeout(SOON_SECONDS):
                    assert (await anext(others)).message.type == EVALUATION_COMPLETED
            # Nor does its result keep those that are waited for from being taken.
            for name in ("ours", "another"):
                await send(bus, completed(name))
            await assert_quiet(bus, RESULTS, DEAD_QUEUE.name)
            assert kinds(evaluations) == {"not_awaited": 1}
            assert evaluations.discarded == {"late": 1, "unknown": 1}

    run_in_virtual_time(main())
