"""Requests of an earlier run that are under way when the next one begins."""

from __future__ import annotations

import asyncio

import pytest
from support.asking import completed, opened, request, send

from schemas.messages import EvaluationResult, Measurement
from spica_async.bus.memory import MemoryBus
from spica_async.bus.topology import declare, requests_queue, results_queue
from spica_async.evaluate.in_flight import Earlier


@pytest.fixture
async def bus() -> MemoryBus:
    """With the queues that an earlier run has left."""
    bus = MemoryBus()
    await declare(bus, requests_queue("engine"), results_queue("sweep"))
    return bus


async def test_what_is_under_way_is_not_sent_again(bus: MemoryBus) -> None:
    async with opened(bus, earlier=Earlier(2, ["one"], [])) as (evaluations, requests):
        asked = asyncio.ensure_future(evaluations.evaluate(request("one")))
        other = asyncio.ensure_future(evaluations.evaluate(request("two")))
        assert (await anext(requests)).message.message_id == "two"
        await send(bus, completed("one", worker="before"))
        assert (await asked).worker == "before"
        await send(bus, completed("two"))
        await other


async def test_results_that_nobody_asks_for_yet_keep_no_others_from_theirs(bus: MemoryBus) -> None:
    """All turns are those of new requests, and all that may be held is of earlier ones."""
    earlier = Earlier(2, ["b1", "b2"], [])
    for name in earlier.requested:
        await send(bus, completed(name))
    async with (
        asyncio.timeout(10),
        opened(bus, parallel=2, earlier=earlier) as (evaluations, requests),
        asyncio.TaskGroup() as group,
    ):
        for name in ("a1", "a2", "b1", "b2"):
            group.create_task(evaluations.evaluate(request(name)))
        for _ in range(2):
            await send(bus, completed((await anext(requests)).message.message_id))


async def test_without_the_queue_of_their_results_they_are_sent_anew() -> None:
    bus = MemoryBus()
    async with opened(bus, earlier=Earlier(2, ["one"], [])) as (evaluations, requests):
        asked = asyncio.ensure_future(evaluations.evaluate(request("one")))
        async with asyncio.timeout(10):
            assert (await anext(requests)).message.message_id == "one"
        await send(bus, completed("one"))
        await asked


async def test_one_whose_trace_was_offered_elsewhere_is_sent_once_more(bus: MemoryBus) -> None:
    kept: list[EvaluationResult] = []

    async def keep(result: EvaluationResult) -> None:
        kept.append(result)

    async with opened(bus, earlier=Earlier(2, ["one"], [])) as (evaluations, requests):
        asked = asyncio.ensure_future(evaluations.evaluate(request("one"), on_result=keep))
        lacking = Measurement(outcome="failed", cause="trace_unavailable", detail="gone")
        await send(bus, completed("one", measurement=lacking))
        async with asyncio.timeout(10):
            assert (await anext(requests)).message.message_id == "one"
        await send(bus, completed("one", worker="second"))
        assert (await asked).worker == "second"
    assert [result.worker for result in kept] == ["second"]
