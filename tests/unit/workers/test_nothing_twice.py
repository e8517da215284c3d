"""What a worker does with a request that it has seen before, or whose result it cannot send."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs
from support.worker_desk import REQUESTS, RESULTS, FakeSlot, feasible, hang, open_desk

from schemas.messages import EvaluationRequest, Measurement
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import (
    BusError,
    BusUnavailableError,
    DeadLetterReason,
    Message,
    MessageTooLargeError,
    QueueStatus,
    UnroutableError,
)
from spica_async.bus.topology import DEAD_QUEUE, declare
from workers.port import ChildDeaths, ChildStartError

A_MINUTE_AGO = datetime.now(UTC) - timedelta(minutes=1)


class FailingBus(MemoryBus):
    """Refuses the next results with these errors."""

    def __init__(self, *errors: BusError) -> None:
        super().__init__()
        self.errors = list(errors)

    async def publish(self, queue: str, message: Message) -> None:
        if queue == RESULTS.name and self.errors:
            raise self.errors.pop(0)
        await super().publish(queue, message)


async def test_a_request_that_comes_again_while_it_runs_is_answered_by_the_same_result() -> None:
    desk = await open_desk()
    go = asyncio.Event()

    async def wait(slot: FakeSlot, request: EvaluationRequest, deaths: ChildDeaths) -> Measurement:
        await go.wait()
        return feasible(slot=slot.index)

    desk.behave = wait
    request = desk.request()
    async with desk.working(slots=3):
        await desk.send(request, request, request)
        await desk.until(lambda: desk.evaluated)
        go.set()
        answers = await desk.answers(3)
    assert len(desk.evaluated) == 1
    assert len({answer.message for answer in answers}) == 1
    assert await desk.left() == 0


async def test_a_request_that_comes_again_later_is_answered_by_the_same_result() -> None:
    desk = await open_desk()
    request, other = desk.request(), desk.request()
    async with desk.working():
        await desk.send(request)
        [first] = await desk.answers(1)
        await desk.send(other, request)
        [between, again] = await desk.answers(2)
    assert first.message == again.message != between.message
    assert desk.evaluated_ids == [request.evaluation_id, other.evaluation_id]


async def test_what_came_back_often_is_evaluated_apart_from_its_like(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workers.handling._SUSPECT_PAUSE_SECONDS", 0.01)
    desk = await open_desk()
    suspects = [desk.request() for _ in range(4)]
    innocent = desk.request()
    running: set[str] = set()
    most: list[int] = []

    async def watch(slot: FakeSlot, request: EvaluationRequest, deaths: ChildDeaths) -> Measurement:
        running.add(request.evaluation_id)
        most.append(len(running - {innocent.evaluation_id}))
        await asyncio.sleep(0.02)
        running.remove(request.evaluation_id)
        return feasible()

    desk.behave = watch
    await desk.send(*suspects)
    for _ in range(10):
        async with desk.bus.consume(REQUESTS.name, prefetch=4) as consumer:
            for _ in suspects:
                await anext(consumer)
    await desk.send(innocent)
    async with desk.working(slots=5):
        assert len(await desk.results(5)) == 5
    assert max(most) == 1


async def test_of_those_that_came_back_together_each_may_be_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else an innocent one would come after the one that takes the worker down, every time."""
    monkeypatch.setattr("workers.handling._SUSPECT_PAUSE_SECONDS", 0.02)
    firsts = set()
    for _ in range(30):
        desk = await open_desk()
        suspects = [desk.request(evaluation_id=name) for name in ("one", "two")]
        await desk.send(*suspects)
        for _ in range(10):
            async with desk.bus.consume(REQUESTS.name, prefetch=2) as consumer:
                for _ in suspects:
                    await anext(consumer)
        async with desk.working(slots=2):
            await desk.results(2)
        firsts.add(desk.evaluated_ids[0])
        if len(firsts) == 2:
            break
    assert firsts == {"one", "two"}


async def test_another_sweeps_evaluation_of_the_same_id_is_another_one() -> None:
    desk = await open_desk()
    async with desk.working():
        await desk.send(desk.request(evaluation_id="e", sweep_id="one"))
        await desk.send(desk.request(evaluation_id="e", sweep_id="two"))
        results = await desk.results(2)
    assert [result.sweep_id for result in results] == ["one", "two"]
    assert len(desk.evaluated) == 2


async def test_a_slot_that_retires_leaves_the_request_to_one_that_waits_with_the_deaths() -> None:
    desk = await open_desk()
    both_have_it = asyncio.Event()

    async def die(slot: FakeSlot, request: EvaluationRequest, deaths: ChildDeaths) -> Measurement:
        if len(desk.evaluated) == 1:
            await both_have_it.wait()
            deaths.count += 2
            raise ChildStartError("no room for another child")
        return feasible()

    desk.behave = die
    request = desk.request()
    async with desk.working(slots=2):
        await desk.send(request, request)
        await desk.until(lambda: desk.evaluated)
        both_have_it.set()
        results = await desk.results(2)
    assert [result.child_deaths for result in results] == [2, 2]
    assert len(desk.evaluated) == 2
    assert await desk.left() == 0


async def test_a_result_that_the_bus_cannot_take_is_kept_until_the_request_comes_again() -> None:
    desk = await open_desk(FailingBus(BusUnavailableError("away"), BusUnavailableError("away")))
    with capture_logs() as logs:
        async with desk.working() as supervisor:
            await desk.send(desk.request())
            await desk.results(1)
    assert len(desk.evaluated) == 1
    assert supervisor.oddities == {"result_unpublished": 2}
    assert len([entry for entry in logs if entry["event"] == "worker.result_unpublished"]) == 1
    assert await desk.left() == 0


async def test_a_results_queue_that_was_missing_for_a_moment_gets_its_result() -> None:
    desk = await open_desk(FailingBus(UnroutableError("no such queue")))
    async with desk.working():
        await desk.send(desk.request())
        await desk.results(1)
    assert len(desk.evaluated) == 1


async def test_a_result_that_cannot_be_sent_ever_costs_its_request() -> None:
    desk = await open_desk(FailingBus(MessageTooLargeError("too large")))
    bad, good = desk.request(), desk.request()
    async with desk.working() as supervisor:
        await desk.send(bad, good)
        [result] = await desk.results(1)
    assert result.evaluation_id == good.evaluation_id
    assert supervisor.oddities == {"result_refused": 1}
    async with desk.bus.consume(DEAD_QUEUE.name, prefetch=1) as consumer:
        dead = await anext(consumer)
    assert dead.message.message_id == bad.evaluation_id
    assert dead.dead_letter is not None
    assert dead.dead_letter.reason is DeadLetterReason.REJECTED


async def test_a_fresh_requests_results_queue_is_not_asked_for() -> None:
    asked: list[str] = []

    class AskedBus(MemoryBus):
        async def queue_status(self, queue: str) -> QueueStatus:
            asked.append(queue)
            return await super().queue_status(queue)

    desk = await open_desk(AskedBus())
    async with desk.working():
        await desk.send(desk.request())
        await desk.send(desk.request(), sent_at=A_MINUTE_AGO)
        await desk.results(2)
    assert asked == [REQUESTS.name, RESULTS.name]


@pytest.mark.parametrize("sent_at", [A_MINUTE_AGO, datetime.min])  # noqa: DTZ901 - a stranger's
async def test_an_old_request_without_a_results_queue_is_dropped(sent_at: datetime) -> None:
    desk = await open_desk()
    orphans, other = [desk.request() for _ in range(3)], desk.request()
    with capture_logs() as logs:
        async with desk.working() as supervisor:
            await desk.send(*orphans, reply_to="spica.results.gone", sent_at=sent_at)
            await desk.send(other)
            await desk.results(1)
    assert desk.evaluated_ids == [other.evaluation_id]
    assert supervisor.oddities == {"orphan_dropped": 3}
    assert len([entry for entry in logs if entry["event"] == "worker.orphan_dropped"]) == 1
    assert await desk.left() == 0


async def test_a_bus_that_does_not_list_queues_stops_nobody() -> None:
    class SilentBus(MemoryBus):
        async def queue_status(self, queue: str) -> QueueStatus:
            if queue == RESULTS.name:
                raise BusUnavailableError("away")
            return await super().queue_status(queue)

    desk = await open_desk(SilentBus())
    async with desk.working() as supervisor:
        await desk.send(desk.request(), sent_at=A_MINUTE_AGO)
        await desk.results(1)
    assert supervisor.oddities == {"orphan_check_failed": 1}


async def test_a_results_queue_that_is_deleted_during_the_evaluation_costs_one_evaluation() -> None:
    desk = await open_desk()

    async def delete(
        slot: FakeSlot, request: EvaluationRequest, deaths: ChildDeaths
    ) -> Measurement:
        await desk.bus.delete_queue(RESULTS.name)
        return feasible()

    desk.behave = delete
    async with desk.working() as supervisor:
        await desk.send(desk.request())
        await desk.until(lambda: "orphan_dropped" in supervisor.oddities)
        # Its coordinator is back, and asks again for what it misses.
        await declare(desk.bus, RESULTS)
        await desk.send(desk.evaluated[0])
        await desk.results(1)
    assert len(desk.evaluated) == 1
    assert supervisor.oddities == {"result_unpublished": 1, "orphan_dropped": 1}


class TestLimit:
    async def test_an_evaluation_is_ended_by_the_workers_own_limit(self) -> None:
        desk = await open_desk()
        desk.behave = hang
        async with desk.working(hard_limit_seconds=0.05):
            await desk.send(desk.request(max_eval_seconds=3600))
            [result] = await desk.results(1)
            assert desk.slots[0].ends == 1
        assert result.measurement.cause == "time_limit"
        assert result.measurement.detail == "still ran after this worker's own limit of 0.05 s"

    async def test_a_timeout_of_something_else_is_not_taken_for_it(self) -> None:
        desk = await open_desk()

        async def time_out(
            slot: FakeSlot, request: EvaluationRequest, deaths: ChildDeaths
        ) -> Measurement:
            raise TimeoutError("of the operating system")

        desk.behave = time_out
        supervisor = desk.supervisor(hard_limit_seconds=1000)
        await desk.send(desk.request())
        with pytest.raises(ExceptionGroup) as caught:
            await supervisor.run()
        assert caught.group_contains(TimeoutError, match="operating system")
        assert await desk.left() == 1
