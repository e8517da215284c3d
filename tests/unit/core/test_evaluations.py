"""Requests over the bus and their one terminal result each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from structlog.testing import capture_logs

from schemas.messages import (
    EVALUATION_COMPLETED,
    EVALUATION_REQUESTED,
    EvaluationCompleted,
    EvaluationRequest,
    EvaluationRequested,
    EvaluationResult,
    Measurement,
    SyntheticLoad,
)
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Consumer, Message
from spica_async.bus.topology import DEAD_QUEUE, requests_queue, results_queue
from spica_async.evaluations import Discarded, Evaluations

REQUESTS, RESULTS = requests_queue("engine").name, results_queue("sweep").name


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


@asynccontextmanager
async def opened(bus: MemoryBus, parallel: int = 4) -> AsyncIterator[tuple[Evaluations, Consumer]]:
    """The coordinator's side, and a consumer of its requests."""
    async with AsyncExitStack() as stack:
        evaluations = await stack.enter_async_context(
            Evaluations.open(bus, coordinator="sweep", fingerprint="engine", parallel=parallel)
        )
        requests = await stack.enter_async_context(bus.consume(REQUESTS, prefetch=100))
        yield evaluations, requests


def request(name: str = "one") -> EvaluationRequest:
    return EvaluationRequest(
        evaluation_id=name,
        sweep_id="sweep",
        sample={"backend": "vllm"},
        load=SyntheticLoad(isl=1, osl=1, requests=1, concurrency=1),
    )


def completed(name: str = "one", worker: str = "w") -> bytes:
    result = EvaluationResult(
        evaluation_id=name,
        sweep_id="sweep",
        worker=worker,
        measurement=Measurement(outcome="feasible", report={"x": 1.0}),
        wall_seconds=0.0,
    )
    return EvaluationCompleted(source="test", data=result).model_dump_json().encode()


async def send(bus: MemoryBus, body: bytes) -> None:
    await bus.publish(RESULTS, Message(body, "some id", EVALUATION_COMPLETED))


async def until_discarded(evaluations: Evaluations, count: int) -> None:
    while evaluations.discarded.total() < count:  # noqa: ASYNC110  # the tally tells nobody
        await asyncio.sleep(0)


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
    "body",
    [
        b"",
        b"\xff",
        b"{}",
        completed().replace(b".v1", b".v2"),
        completed().replace(b'"feasible"', b'"splendid"'),
        completed().replace(b'"x":1.0', b'"x":NaN'),
        completed().replace(b'"wall_seconds":0.0', b'"wall_seconds":-1'),
    ],
)
async def test_what_is_no_result_goes_to_the_dead_letters(bus: MemoryBus, body: bytes) -> None:
    async with (
        opened(bus) as (evaluations, requests),
        bus.consume(DEAD_QUEUE.name, prefetch=1) as dead,
        asyncio.TaskGroup() as group,
    ):
        asked = group.create_task(evaluations.evaluate(request()))
        await anext(requests)
        await send(bus, body)
        letter = await anext(dead)
        assert letter.message.body == body
        assert evaluations.discarded == {Discarded.MALFORMED: 1}
        # It is about nothing that is known, so it ends nothing: the real result is still taken.
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


async def test_one_warning_is_logged_for_each_kind_of_discarded_message(bus: MemoryBus) -> None:
    with capture_logs() as events:
        async with opened(bus) as (evaluations, _):
            for body in (completed("a"), completed("b"), b"", b"{}"):
                await send(bus, body)
            await until_discarded(evaluations, 4)
    assert [(event["event"], event["reason"]) for event in events] == [
        ("coordinator.result_discarded", "unknown"),
        ("coordinator.result_discarded", "malformed"),
    ]
