"""When a slot takes requests, and when it leaves them to others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import patch

import pytest
from support.worker_desk import (
    REQUESTS,
    WAIT_SECONDS,
    Desk,
    FakeSlot,
    feasible,
    hang,
    next_status,
    open_desk,
)

from schemas.messages import Measurement
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import BusUnavailableError, Consumer, QueueStatus
from spica_async.bus.topology import declare
from workers.port import ChildStartError


async def taken(desk: Desk) -> list[int]:
    """Take all that is left, and count how often each came back before."""
    count = await desk.left()
    async with (
        asyncio.timeout(WAIT_SECONDS),
        desk.bus.consume(REQUESTS.name, prefetch=count) as consumer,
    ):
        return [(await anext(consumer)).delivery_count for _ in range(count)]


async def test_a_busy_worker_holds_no_more_than_it_evaluates() -> None:
    desk = await open_desk()
    desk.behave = hang
    async with desk.working(slots=2):
        await desk.send(*(desk.request() for _ in range(5)))
        await desk.until(lambda: len(desk.evaluated) == 2)
        assert await desk.bus.queue_status(REQUESTS.name) == QueueStatus(ready=3, consumers=2)
    # Those that were evaluated have come back, behind them what was never handed out.
    assert await taken(desk) == [1, 1, 0, 0, 0]


async def test_a_slot_without_a_warm_child_takes_nothing() -> None:
    desk = await open_desk()
    may_start = asyncio.Event()
    may_start.set()

    async def wait(slot: FakeSlot) -> None:
        await may_start.wait()

    desk.before_start = wait
    desk.ends_children = True
    async with desk.working():
        await desk.until(lambda: desk.slots[0].is_warm)
        may_start.clear()
        await desk.send(desk.request(), desk.request())
        await desk.results(1)
        async with asyncio.timeout(WAIT_SECONDS):
            while (await desk.bus.queue_status(REQUESTS.name)).consumers:  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.001)
    assert await taken(desk) == [0]
    assert len(desk.evaluated) == 1


async def test_a_slot_goes_on_with_its_next_child() -> None:
    desk = await open_desk()
    desk.ends_children = True
    async with desk.working(slots=2) as supervisor:
        await desk.send(*(desk.request() for _ in range(20)))
        await desk.results(20)
    assert len(desk.evaluated) == 20
    assert sum(slot.child_starts for slot in supervisor.statistics) >= 20


async def test_a_stop_hands_out_nothing_in_return_for_what_ends() -> None:
    desk = await open_desk()
    go = asyncio.Event()

    async def wait(*_: object) -> Measurement:
        await go.wait()
        return feasible()

    desk.behave = wait
    async with desk.working(drain_seconds=1000) as supervisor:
        await desk.send(desk.request(), desk.request())
        await desk.until(lambda: desk.evaluated)
        supervisor.stopping.set()
        await asyncio.sleep(0)
        go.set()
    assert len(desk.evaluated) == 1
    assert await taken(desk) == [0]


async def test_an_abort_kills_before_requests_are_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kills_when_given_back: list[int] = []

    desk = await open_desk()
    desk.behave = hang
    consume = desk.bus.consume

    @asynccontextmanager
    async def watched(queue: str, *, prefetch: int) -> AsyncIterator[Consumer]:
        async with consume(queue, prefetch=prefetch) as consumer:
            try:
                yield consumer
            finally:
                if queue == REQUESTS.name:
                    kills_when_given_back.append(desk.slots[0].kills)

    monkeypatch.setattr(desk.bus, "consume", watched)
    running = asyncio.ensure_future(desk.supervisor().run())
    await desk.send(desk.request())
    await desk.until(lambda: desk.evaluated)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert kills_when_given_back == [1]
    assert await taken(desk) == [1]


async def test_a_queue_that_goes_while_a_child_starts_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workers.serving._QUEUE_PAUSE_SECONDS", 0.001)
    desk = await open_desk()
    gone = asyncio.Event()

    async def wait(slot: FakeSlot) -> None:
        await gone.wait()

    desk.before_start = wait
    async with desk.bus.subscribe("worker.heartbeat") as events, desk.working() as supervisor:
        await next_status(events, state="starting")
        await desk.bus.delete_queue(REQUESTS.name)
        gone.set()
        troubled = await next_status(events, state="starting")
        assert "no queue" in str(troubled.trouble)
        await declare(desk.bus, REQUESTS)
        await next_status(events, state="ready", trouble=None)
        await desk.send(desk.request())
        await desk.results(1)
    assert supervisor.oddities["queue_unavailable"] >= 1


async def test_a_slot_that_retires_is_published_and_counted_out() -> None:
    desk = await open_desk()

    async def fail(slot: FakeSlot) -> None:
        if slot.index == 0:
            raise ChildStartError("no room for one more")

    desk.before_start = fail
    async with desk.bus.subscribe("worker.heartbeat") as events, desk.working(slots=2):
        status = await next_status(events, slots=1)
        assert "no room for one more" in str(status.trouble)
        await desk.send(desk.request())
        await desk.results(1)


async def test_a_consumer_that_cannot_be_stopped_costs_nothing() -> None:
    class LeavingBus(MemoryBus):
        """Goes whenever somebody wants to stop a consumer."""

        @asynccontextmanager
        async def consume(self, queue: str, *, prefetch: int) -> AsyncIterator[Consumer]:
            async with super().consume(queue, prefetch=prefetch) as consumer:
                with patch.object(consumer, "stop", side_effect=BusUnavailableError("away")):
                    yield consumer

    desk = await open_desk(LeavingBus())
    desk.ends_children = True
    async with desk.working() as supervisor:
        await desk.send(desk.request())
        await desk.results(1)
    assert supervisor.oddities == {"consumer_lost": 1}
    assert await desk.left() == 0
