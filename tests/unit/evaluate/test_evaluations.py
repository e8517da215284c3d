"""Requests over the bus and their one terminal result each."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs
from support.asking import RESULTS, completed, opened, request, send, until_discarded

from schemas.messages import EVALUATION_COMPLETED, EVALUATION_REQUESTED, EvaluationRequested
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Message, QueueStatus
from spica_async.evaluate.messages import Discarded


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


async def test_a_request_is_complete_and_its_result_comes_back(bus: MemoryBus) -> None:
    async with opened(bus) as (evaluations, requests), asyncio.TaskGroup() as group:
        asked = group.create_task(evaluations.evaluate(request()))
        delivery = await anext(requests)
        message = delivery.message
        assert (message.message_id, message.type, message.reply_to) == (
            "one",
            EVALUATION_REQUESTED,
            RESULTS,
        )
        envelope = EvaluationRequested.model_validate_json(message.body)
        assert envelope.data == request()
        assert (envelope.id, envelope.subject, envelope.source) == (
            "one",
            "one",
            "spica/coordinator/sweep",
        )
        await delivery.ack()
        await send(bus, completed())
        assert (await asked).worker == "w"
        assert evaluations.discarded == {}


async def test_at_most_as_many_are_in_flight_as_are_allowed_and_in_turn(bus: MemoryBus) -> None:
    names = ["a", "b", "c", "d"]
    async with opened(bus, parallel=2) as (evaluations, requests), asyncio.TaskGroup() as group:
        asked = [group.create_task(evaluations.evaluate(request(name))) for name in names]
        for sent, name in enumerate(names, start=1):
            delivery = await anext(requests)
            assert delivery.message.message_id == name
            if sent < 2:
                continue
            for _ in range(20):  # nothing more comes, however long one waits
                await asyncio.sleep(0)
            assert sum(task.done() for task in asked) == sent - 2
            await send(bus, completed(names[sent - 2]))
        await send(bus, completed("d"))


async def test_a_second_result_changes_nothing_and_is_counted(bus: MemoryBus) -> None:
    async with opened(bus) as (evaluations, requests), asyncio.TaskGroup() as group:
        asked = group.create_task(evaluations.evaluate(request()))
        await anext(requests)
        await send(bus, completed(worker="first"))
        await send(bus, completed(worker="second"))
        assert (await asked).worker == "first"
        await send(bus, completed(worker="third"))
        await until_discarded(evaluations, 2)
        assert evaluations.discarded == {Discarded.LATE: 2}


async def test_a_result_that_nobody_waits_for_any_more_is_late(bus: MemoryBus) -> None:
    async with opened(bus) as (evaluations, requests):
        asked = asyncio.ensure_future(evaluations.evaluate(request()))
        await anext(requests)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        await send(bus, completed())
        await until_discarded(evaluations, 1)
        assert evaluations.discarded == {Discarded.LATE: 1}


async def test_a_result_that_was_never_asked_for_is_unknown(bus: MemoryBus) -> None:
    async with opened(bus) as (evaluations, _):
        await send(bus, completed("other"))
        await until_discarded(evaluations, 1)
        assert evaluations.discarded == {Discarded.UNKNOWN: 1}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", Discarded.MALFORMED),
        (b"\xff", Discarded.MALFORMED),
        (b"{}", Discarded.MALFORMED),
        (b"[" * 5000, Discarded.MALFORMED),
        (completed().replace(b".v1", b".v2"), Discarded.UNKNOWN_TYPE),
        (completed().replace(b"completed.v1", b"requested.v1"), Discarded.UNKNOWN_TYPE),
        (completed().replace(b'"feasible"', b'"splendid"'), Discarded.MALFORMED),
        (completed().replace(b'"x":1.0', b'"x":NaN'), Discarded.MALFORMED),
        (completed().replace(b'"wall_seconds":0.0', b'"wall_seconds":-1'), Discarded.MALFORMED),
        (completed().replace(b'"sweep"', b'"another"'), Discarded.OTHER_SWEEP),
    ],
)
async def test_what_is_no_result_of_ours_is_counted_and_changes_nothing(
    bus: MemoryBus, body: bytes, kind: Discarded
) -> None:
    async with opened(bus) as (evaluations, requests), asyncio.TaskGroup() as group:
        asked = group.create_task(evaluations.evaluate(request()))
        await anext(requests)
        await send(bus, body)
        await until_discarded(evaluations, 1)
        assert evaluations.discarded == {kind: 1}
        assert not asked.done()
        assert await bus.queue_status(RESULTS) == QueueStatus(ready=0, consumers=1)
        await send(bus, completed())
        await asked


async def test_what_is_sent_as_something_else_is_no_result(bus: MemoryBus) -> None:
    async with opened(bus) as (evaluations, requests), asyncio.TaskGroup() as group:
        asked = group.create_task(evaluations.evaluate(request()))
        await anext(requests)
        await bus.publish(RESULTS, Message(completed(), "some id", EVALUATION_REQUESTED))
        await until_discarded(evaluations, 1)
        assert evaluations.discarded == {Discarded.UNKNOWN_TYPE: 1}
        assert not asked.done()
        await send(bus, completed())
        await asked


async def test_an_unreadable_result_ends_the_evaluation_that_it_is_about(bus: MemoryBus) -> None:
    async with opened(bus) as (evaluations, requests), asyncio.TaskGroup() as group:
        asked = group.create_task(evaluations.evaluate(request()))
        await anext(requests)
        unreadable = completed().replace(b'"x":1.0', b'"x":NaN')
        await send(bus, unreadable.replace(b'"subject":null', b'"subject":"one"'))
        measurement = (await asked).measurement
    assert (measurement.outcome, measurement.cause) == ("failed", "result_malformed")
    assert measurement.detail is not None
    assert "data.measurement.report.x" in measurement.detail


async def test_a_result_of_a_later_version_ends_the_evaluation_that_it_is_about(
    bus: MemoryBus,
) -> None:
    async with opened(bus) as (evaluations, requests), asyncio.TaskGroup() as group:
        asked = group.create_task(evaluations.evaluate(request()))
        await anext(requests)
        later = completed().replace(b"completed.v1", b"completed.v2")
        body = later.replace(b'"subject":null', b'"subject":"one"')
        await bus.publish(
            RESULTS, Message(body, "some id", EVALUATION_COMPLETED.replace("v1", "v2"))
        )
        measurement = (await asked).measurement
        assert evaluations.discarded == {Discarded.UNKNOWN_TYPE: 1}
    assert (measurement.outcome, measurement.cause) == ("failed", "result_malformed")


async def test_fields_that_a_later_version_adds_are_ignored(bus: MemoryBus) -> None:
    async with opened(bus) as (evaluations, requests), asyncio.TaskGroup() as group:
        asked = group.create_task(evaluations.evaluate(request()))
        await anext(requests)
        await send(bus, completed().replace(b'"worker":', b'"added":{"a":1},"worker":'))
        assert (await asked).worker == "w"


async def test_an_evaluation_is_asked_for_once(bus: MemoryBus) -> None:
    async with opened(bus) as (evaluations, requests), asyncio.TaskGroup() as group:
        asked = group.create_task(evaluations.evaluate(request()))
        await anext(requests)
        with pytest.raises(ValueError, match="evaluation one was asked for before"):
            await evaluations.evaluate(request())
        await send(bus, completed())
        await asked
        with pytest.raises(ValueError, match="evaluation one was asked for before"):
            await evaluations.evaluate(request())


async def test_of_thousands_of_odd_messages_one_of_each_kind_is_logged(bus: MemoryBus) -> None:
    bodies = (completed("a"), b"", completed().replace(b".v1", b".v2"))
    with capture_logs() as events:
        async with opened(bus) as (evaluations, _):
            for number in range(9999):
                await send(bus, bodies[number % 3])
            await until_discarded(evaluations, 9999)
    assert [(event["event"], event.get("kind"), event.get("total")) for event in events] == [
        ("coordinator.result_discarded", "unknown", None),
        ("coordinator.result_discarded", "malformed", None),
        ("coordinator.result_discarded", "unknown_type", None),
        (
            "coordinator.result_discarded",
            None,
            {"unknown": 3333, "malformed": 3333, "unknown_type": 3333},
        ),
    ]
