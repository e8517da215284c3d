"""A supervisor on the in-memory bus, with real children."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.worker_desk import make_supervisor

from schemas.control import SweepCancellation, SweepCancelled
from schemas.events import EvaluationStarted
from schemas.messages import (
    EVALUATION_COMPLETED,
    EVALUATION_REQUESTED,
    EvaluationCompleted,
    EvaluationRequest,
    EvaluationRequested,
    EvaluationResult,
)
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import (
    Consumer,
    DeadLetterReason,
    Delivery,
    DeliveryLostError,
    Message,
    QueueNotFoundError,
    Settlement,
)
from spica_async.bus.topology import DEAD_QUEUE, declare, requests_queue, results_queue
from workers.port import ChildStartError
from workers.settings import ChildSettings
from workers.supervisor import Supervisor

REQUESTS = requests_queue("engine")
RESULTS = results_queue("coordinator")
PLENTY = 2**40
MakeRequest = Callable[..., EvaluationRequest]
MakeSupervisor = Callable[..., Supervisor]
Marked = Callable[[str], list[str]]
Running = Callable[[], list[int]]
Until = Callable[[Callable[[], Any]], Awaitable[Any]]


@pytest.fixture
async def bus() -> MemoryBus:
    bus = MemoryBus()
    await declare(bus, REQUESTS, RESULTS)
    return bus


@pytest.fixture
def make(bus: MemoryBus, settings: ChildSettings) -> MakeSupervisor:
    def make(**changes: Any) -> Supervisor:
        arguments: dict[str, Any] = {
            "children": settings,
            "memory_limit_bytes": PLENTY,
            "estimate_bytes": lambda load: 1000 * load.requests,
        }
        return make_supervisor(**({"bus": bus} | arguments | changes))

    return make


@asynccontextmanager
async def working(supervisor: Supervisor) -> AsyncIterator[Supervisor]:
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run())
        yield supervisor
        supervisor.stopping.set()


async def send(bus: MemoryBus, *requests: EvaluationRequest, reply_to: str = RESULTS.name) -> None:
    for request in requests:
        envelope = EvaluationRequested(
            id=request.evaluation_id, source="spica/coordinator/test", data=request
        )
        await bus.publish(REQUESTS.name, Message.of(envelope, RESULTS.name))


async def receive(bus: MemoryBus, count: int) -> dict[str, EvaluationResult]:
    """Take so many results and give them by evaluation id."""
    results = {}
    async with bus.consume(RESULTS.name, prefetch=1) as consumer, asyncio.timeout(60):
        for _ in range(count):
            delivery = await anext(consumer)
            assert delivery.message.type == EVALUATION_COMPLETED
            completed = EvaluationCompleted.model_validate_json(delivery.message.body)
            assert completed.subject == completed.data.evaluation_id
            results[completed.data.evaluation_id] = completed.data
            await delivery.ack()
    return results


async def take(bus: MemoryBus, queue: str, count: int = 1) -> list[Delivery]:
    async with bus.consume(queue, prefetch=count) as consumer, asyncio.timeout(10):
        return [await anext(consumer) for _ in range(count)]


async def is_empty(bus: MemoryBus, queue: str) -> bool:
    async with bus.consume(queue, prefetch=1) as consumer:
        try:
            async with asyncio.timeout(0.05):
                await anext(consumer)
        except TimeoutError:
            return True
        return False


class TestEvaluating:
    async def test_a_result_tells_who_took_what(
        self, bus: MemoryBus, make: MakeSupervisor, request_to: MakeRequest
    ) -> None:
        request = request_to("exit_twice")
        async with working(make()):
            await send(bus, request)
            result = (await receive(bus, 1))[request.evaluation_id]
        assert result.sweep_id == request.sweep_id
        assert result.worker == "here"
        assert result.child_deaths == 2
        assert result.wall_seconds > 0
        assert result.measurement.outcome == "feasible"
        assert await is_empty(bus, REQUESTS.name)

    async def test_each_slot_runs_one_at_a_time(
        self, bus: MemoryBus, make: MakeSupervisor, request_to: MakeRequest
    ) -> None:
        requests = [request_to("alone", most=2) for _ in range(20)]
        async with working(make(slots=2)) as supervisor:
            await send(bus, *requests)
            results = await receive(bus, 20)
        assert {result.measurement.detail for result in results.values()} == {None}
        assert sum(slot.evaluations for slot in supervisor.statistics) == 20
        assert [slot.child_starts for slot in supervisor.statistics] == [1, 1]

    async def test_slots_run_side_by_side(
        self, bus: MemoryBus, make: MakeSupervisor, request_to: MakeRequest
    ) -> None:
        async with working(make(slots=2)):
            await send(bus, request_to("meet", own="one", mark="two"))
            await send(bus, request_to("meet", own="two", mark="one"))
            results = await receive(bus, 2)
        assert {result.measurement.outcome for result in results.values()} == {"feasible"}

    async def test_a_neighbour_of_deaths_is_not_touched(
        self, bus: MemoryBus, make: MakeSupervisor, request_to: MakeRequest, marks: Path
    ) -> None:
        steady, deadly = request_to("wait_for", mark="go"), request_to("exit_at_once")
        async with working(make(slots=2)):
            await send(bus, steady, deadly)
            died = (await receive(bus, 1))[deadly.evaluation_id]
            (marks / "go").touch()
            lived = (await receive(bus, 1))[steady.evaluation_id]
        assert (died.measurement.cause, died.child_deaths) == ("child_died", 3)
        assert (lived.measurement.outcome, lived.child_deaths) == ("feasible", 0)

    async def test_the_slot_goes_on_with_a_warm_child_after_a_limit(
        self, bus: MemoryBus, make: MakeSupervisor, request_to: MakeRequest, until: Until
    ) -> None:
        stuck = request_to("hang_with_grandchild", max_eval_seconds=0.3)
        async with working(make()) as supervisor:
            await send(bus, stuck)
            results = await receive(bus, 1)
            assert results[stuck.evaluation_id].measurement.cause == "time_limit"
            await until(lambda: supervisor.statistics[0].child_starts == 2)
            after = request_to("succeed")
            await send(bus, after)
            results = await receive(bus, 1)
        assert results[after.evaluation_id].measurement.outcome == "feasible"
        assert supervisor.statistics[0].child_starts == 2

    async def test_the_start_is_told(
        self, bus: MemoryBus, make: MakeSupervisor, request_to: MakeRequest, marks: Path
    ) -> None:
        request = request_to("wait_for", mark="go")
        async with bus.subscribe("worker.evaluation.*") as events, working(make()):
            await send(bus, request)
            async with asyncio.timeout(60):
                event = await anext(events)
            (marks / "go").touch()
            await receive(bus, 1)
        start = EvaluationStarted.model_validate_json(event.message.body).data
        assert event.topic == "worker.evaluation.started"
        assert start.evaluation_id == request.evaluation_id
        assert (start.sweep_id, start.worker, start.slot) == ("sweep", "here", 0)

    async def test_what_is_too_large_is_refused_unseen(
        self, bus: MemoryBus, make: MakeSupervisor, request_to: MakeRequest, marked: Marked
    ) -> None:
        # The estimate for the four requests is 4,000 bytes.
        large = request_to("succeed")
        async with (
            bus.subscribe("worker.evaluation.#") as events,
            working(make(memory_limit_bytes=3999)) as supervisor,
        ):
            await send(bus, large)
            results = await receive(bus, 1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(events)
        measurement = results[large.evaluation_id].measurement
        assert (measurement.outcome, measurement.cause) == ("failed", "resource_limited")
        assert "4 requests with 440 tokens" in str(measurement.detail)
        assert marked("run-*") == []
        assert supervisor.statistics[0].evaluations == 0

    async def test_what_just_fits_is_not_refused(
        self,
        bus: MemoryBus,
        make: MakeSupervisor,
        settings: ChildSettings,
        request_to: MakeRequest,
    ) -> None:
        request = request_to("succeed")
        # Only the estimate is at stake; the child itself has more than that, unseen.
        unseen = replace(settings, memory_sample_seconds=60)
        async with working(make(memory_limit_bytes=4000, children=unseen)):
            await send(bus, request)
            result = (await receive(bus, 1))[request.evaluation_id]
        assert result.measurement.outcome == "feasible"


class RecordingBus(MemoryBus):
    """Notes publishes and acks in their order; acks fail once `lose` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.record: list[str] = []
        self.lose = False

    async def publish(self, queue: str, message: Message) -> None:
        await super().publish(queue, message)
        if queue == RESULTS.name:
            self.record.append("published")

    def consume(  # type: ignore[override]  # narrower would bind it to how MemoryBus is written
        self, queue: str, *, prefetch: int
    ) -> AbstractAsyncContextManager[Consumer]:
        inner = super().consume(queue, prefetch=prefetch)
        return inner if queue != REQUESTS.name else self._recorded(inner)

    @asynccontextmanager
    async def _recorded(
        self, inner: AbstractAsyncContextManager[Consumer]
    ) -> AsyncIterator[Consumer]:
        async with inner as consumer:
            yield RecordingConsumer(self, consumer)


class RecordingConsumer:
    def __init__(self, bus: RecordingBus, inner: Consumer) -> None:
        self.bus = bus
        self.inner = inner

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        return RecordingDelivery(self.bus, await anext(self.inner))

    async def stop(self) -> None:
        await self.inner.stop()


class RecordingDelivery(Delivery):
    is_lost = False

    def __init__(self, bus: RecordingBus, inner: Delivery) -> None:
        super().__init__(inner.message, REQUESTS.name)
        self.bus = bus
        self.inner = inner

    async def _carry_out(self, settlement: Settlement) -> None:
        if settlement is Settlement.ACKED:
            self.bus.record.append("acked")
            if self.bus.lose:
                raise DeliveryLostError("the connection went")
        await self.inner.settle(settlement)


class TestSettling:
    async def test_the_result_is_published_before_the_request_is_acked(
        self, make: MakeSupervisor, request_to: MakeRequest
    ) -> None:
        bus = RecordingBus()
        await declare(bus, REQUESTS, RESULTS)
        async with working(make(bus=bus)):
            await send(bus, request_to("succeed"), request_to("fail"))
            await receive(bus, 2)
        assert bus.record == ["published", "acked", "published", "acked"]

    async def test_an_ack_that_comes_too_late_is_logged(
        self, make: MakeSupervisor, request_to: MakeRequest
    ) -> None:
        bus = RecordingBus()
        await declare(bus, REQUESTS, RESULTS)
        bus.lose = True
        with capture_logs() as logs:
            async with working(make(bus=bus, slots=2)) as supervisor:
                await send(bus, request_to("succeed"), request_to("succeed"))
                await receive(bus, 2)
        lost = [entry for entry in logs if entry["event"] == "worker.delivery_lost"]
        assert [entry["log_level"] for entry in lost] == ["warning"]
        assert supervisor.oddities == {"delivery_lost": 2}

    async def test_malformed_messages_are_dead_lettered_with_a_warning_per_kind(
        self, bus: MemoryBus, make: MakeSupervisor, request_to: MakeRequest
    ) -> None:
        body = EvaluationRequested(source="test", data=request_to("succeed")).model_dump_json()
        malformed = [
            Message(b"{", "broken", EVALUATION_REQUESTED, RESULTS.name),
            Message(b"{}", "empty", EVALUATION_REQUESTED, RESULTS.name),
            Message(body.encode(), "v2", "spica.evaluation.requested.v2", RESULTS.name),
            Message(body.encode(), "mute", EVALUATION_REQUESTED),
        ]
        with capture_logs() as logs:
            async with working(make()) as supervisor:
                for message in malformed:
                    await bus.publish(REQUESTS.name, message)
                good = request_to("succeed")
                await send(bus, good)
                assert list(await receive(bus, 1)) == [good.evaluation_id]
        dead = await take(bus, DEAD_QUEUE.name, count=4)
        assert [delivery.message for delivery in dead] == malformed
        reasons = {delivery.dead_letter and delivery.dead_letter.reason for delivery in dead}
        assert reasons == {DeadLetterReason.REJECTED}
        assert supervisor.oddities == {
            "malformed_message/invalid_body": 2,
            "malformed_message/unknown_type": 1,
            "malformed_message/no_reply_to": 1,
        }
        warned = [entry["kind"] for entry in logs if entry["event"] == "worker.malformed_message"]
        assert sorted(warned) == ["invalid_body", "no_reply_to", "unknown_type"]


class TestStopping:
    async def test_draining_finishes_what_runs_and_takes_nothing_new(
        self,
        *,
        bus: MemoryBus,
        make: MakeSupervisor,
        request_to: MakeRequest,
        until: Until,
        marked: Marked,
        marks: Path,
    ) -> None:
        running, waiting = request_to("wait_for", mark="go"), request_to("succeed")
        async with working(make(drain_seconds=60)) as supervisor:
            await send(bus, running, waiting)
            await until(lambda: marked("run-*"))
            supervisor.stopping.set()
            await asyncio.sleep(0)
            (marks / "go").touch()
        results = await receive(bus, 1)
        assert results[running.evaluation_id].measurement.outcome == "feasible"
        [left] = await take(bus, REQUESTS.name)
        assert left.message.message_id == waiting.evaluation_id
        assert left.delivery_count == 0
        assert await is_empty(bus, RESULTS.name)
        assert len(marked("run-*")) == 1

    async def test_what_outlasts_the_grace_is_given_back(
        self,
        *,
        bus: MemoryBus,
        make: MakeSupervisor,
        request_to: MakeRequest,
        until: Until,
        marked: Marked,
        running: Running,
    ) -> None:
        stuck = [request_to("hang_with_grandchild") for _ in range(2)]
        async with working(make(slots=2, drain_seconds=0.05)):
            await send(bus, *stuck)
            await until(lambda: len(marked("grandchild-*")) == 2)
        assert running() == []
        left = await take(bus, REQUESTS.name, count=2)
        assert [delivery.delivery_count for delivery in left] == [1, 1]
        assert await is_empty(bus, RESULTS.name)

    async def test_an_aborted_evaluation_goes_to_another_worker(
        self,
        *,
        bus: MemoryBus,
        make: MakeSupervisor,
        request_to: MakeRequest,
        until: Until,
        marked: Marked,
        marks: Path,
        running: Running,
    ) -> None:
        request = request_to("wait_for", mark="go")
        aborted = asyncio.ensure_future(make(name="first").run())
        await send(bus, request)
        await until(lambda: marked("run-*"))
        aborted.cancel()
        with pytest.raises(asyncio.CancelledError):
            await aborted
        assert running() == []
        (marks / "go").touch()
        async with working(make(name="second")):
            result = (await receive(bus, 1))[request.evaluation_id]
        assert result.worker == "second"
        assert result.child_deaths == 0
        assert len(marked("run-*")) == 2

    async def test_a_stop_during_the_start_leaves_nothing(
        self,
        *,
        bus: MemoryBus,
        make: MakeSupervisor,
        settings: ChildSettings,
        until: Until,
        running: Running,
        request_to: MakeRequest,
    ) -> None:
        hanging = replace(settings, warm_up="fake_evaluators:hanging_warm_up")
        async with working(make(children=hanging, drain_seconds=60)):
            await send(bus, request_to("succeed"))
            await until(running)
        assert running() == []
        [left] = await take(bus, REQUESTS.name)
        # It was never taken: there was no child for it.
        assert left.delivery_count == 0

    async def test_it_runs_once(self, make: MakeSupervisor) -> None:
        async with working(make()) as supervisor:
            pass
        with pytest.raises(RuntimeError, match="once"):
            await supervisor.run()


def retired(logs: Sequence[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    return [entry for entry in logs if entry["event"] == "worker.slot_retired"]


class TestCancelling:
    async def test_a_cancelled_sweeps_child_is_ended_and_the_next_request_gets_another(
        self,
        *,
        bus: MemoryBus,
        make: MakeSupervisor,
        request_to: MakeRequest,
        until: Until,
        marked: Marked,
        running: Running,
    ) -> None:
        stuck = request_to("hang_with_grandchild")
        after = request_to("succeed").model_copy(update={"sweep_id": "other"})
        order = SweepCancelled(
            source="test", data=SweepCancellation(sweep_id="sweep", grace_seconds=0)
        )
        async with working(make()) as supervisor:
            await send(bus, stuck, after)
            await until(lambda: marked("grandchild-*"))
            [first] = running()
            await bus.broadcast(Message.of(order))
            results = await receive(bus, 1)
            assert first not in running()
        assert list(results) == [after.evaluation_id]
        assert [slot.child_starts for slot in supervisor.statistics] == [2]
        assert [slot.child_deaths for slot in supervisor.statistics] == [0]
        assert await is_empty(bus, REQUESTS.name)

    async def test_the_workers_own_limit_ends_the_child(
        self, bus: MemoryBus, make: MakeSupervisor, request_to: MakeRequest, marked: Marked
    ) -> None:
        requests = [
            request_to("hang_with_grandchild", max_eval_seconds=600),
            request_to("hang_with_grandchild", max_eval_seconds=0.3),
            request_to("succeed"),
        ]
        async with working(make(hard_limit_seconds=1.5)):
            await send(bus, *requests)
            results = await receive(bus, 3)
        own, asked, after = (results[request.evaluation_id].measurement for request in requests)
        assert (own.cause, asked.cause, after.outcome) == ("time_limit", "time_limit", "feasible")
        assert "this worker's own limit of 1.5 s" in str(own.detail)
        assert "max_eval_seconds, 0.3" in str(asked.detail)

    async def test_the_workers_own_limit_holds_over_what_is_set_up_for_a_request(
        self,
        bus: MemoryBus,
        make: MakeSupervisor,
        settings: ChildSettings,
        request_to: MakeRequest,
    ) -> None:
        hanging = replace(settings, warm_up="fake_evaluators:hanging_set_up")
        async with working(make(children=hanging, hard_limit_seconds=0.5)):
            request = request_to("succeed", max_eval_seconds=0.1)
            await send(bus, request)
            results = await receive(bus, 1)
        measurement = results[request.evaluation_id].measurement
        # That is nothing that the candidate took.
        assert (measurement.cause, measurement.detail) == (
            "child_died",
            "no child was set up for it within this worker's own limit of 0.5 s",
        )


class TestFailing:
    async def test_a_broken_evaluator_ends_the_worker_and_gives_requests_back(
        self,
        bus: MemoryBus,
        make: MakeSupervisor,
        settings: ChildSettings,
        request_to: MakeRequest,
    ) -> None:
        broken = replace(settings, evaluator="no_such_module:evaluate", start_attempts=1)
        await send(bus, request_to("succeed"))
        with pytest.raises(ExceptionGroup) as caught:
            await make(slots=2, children=broken).run()
        assert caught.group_contains(ChildStartError, match="no_such_module")
        [left] = await take(bus, REQUESTS.name)
        assert left.message.message_id == "e1"

    async def test_a_slot_without_a_child_retires_and_the_other_does_all(
        self,
        *,
        bus: MemoryBus,
        make: MakeSupervisor,
        settings: ChildSettings,
        request_to: MakeRequest,
        until: Until,
        marks: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("WARM_UP_MARK", str(marks / "warm"))
        scarce = replace(settings, warm_up="fake_evaluators:succeed_once", start_attempts=1)
        requests = [request_to("succeed") for _ in range(4)]
        with capture_logs() as logs:
            async with working(make(slots=2, children=scarce)) as supervisor:
                await until(lambda: retired(logs))
                await send(bus, *requests)
                results = await receive(bus, 4)
        assert {result.measurement.outcome for result in results.values()} == {"feasible"}
        assert sorted(slot.child_starts for slot in supervisor.statistics) == [0, 1]
        assert sorted(slot.evaluations for slot in supervisor.statistics) == [0, 4]
        [entry] = retired(logs)
        assert supervisor.statistics[entry["slot"]].child_starts == 0
        assert "FileExistsError" in entry["error"]

    async def test_a_slot_that_retires_over_a_request_leaves_it_to_the_other(
        self,
        *,
        bus: MemoryBus,
        make: MakeSupervisor,
        settings: ChildSettings,
        request_to: MakeRequest,
        until: Until,
        marks: Path,
        marked: Marked,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("WARM_UP_MARK", str(marks / "full"))
        scarce = replace(settings, warm_up="fake_evaluators:succeed_until_marked", start_attempts=1)
        request = request_to("exit_once")
        with capture_logs() as logs:
            async with working(make(slots=2, children=scarce)) as supervisor:
                await until(lambda: all(slot.child_starts for slot in supervisor.statistics))
                (marks / "full").touch()
                await send(bus, request)
                result = (await receive(bus, 1))[request.evaluation_id]
        assert result.measurement.outcome == "feasible"
        assert result.child_deaths == 1
        assert len(marked("run-*")) == 2
        [entry] = retired(logs)
        assert supervisor.statistics[entry["slot"]].evaluations == 0
        assert "no room for one more" in entry["error"]
        assert await is_empty(bus, REQUESTS.name)

    async def test_the_last_slot_to_retire_ends_the_worker(
        self,
        *,
        bus: MemoryBus,
        make: MakeSupervisor,
        settings: ChildSettings,
        request_to: MakeRequest,
        until: Until,
        marks: Path,
        marked: Marked,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("WARM_UP_MARK", str(marks / "full"))
        scarce = replace(settings, warm_up="fake_evaluators:succeed_until_marked", start_attempts=1)
        request = request_to("exit_at_once")
        supervisor = make(slots=2, children=scarce)
        with capture_logs() as logs:
            running = asyncio.ensure_future(supervisor.run())
            await until(lambda: all(slot.child_starts for slot in supervisor.statistics))
            (marks / "full").touch()
            await send(bus, request)
            with pytest.raises(ExceptionGroup) as caught:
                await running
        [error] = caught.value.exceptions
        assert isinstance(error, ChildStartError)
        assert "no room for one more" in str(error)
        assert len(retired(logs)) == 1
        # Each slot took the request and gave it back.
        assert len(marked("run-*")) == 2
        [left] = await take(bus, REQUESTS.name)
        assert left.message.message_id == request.evaluation_id

    async def test_the_queue_must_exist(self, make: MakeSupervisor) -> None:
        with pytest.raises(QueueNotFoundError, match="other_engine"):
            await make(engine_fingerprint="other_engine").run()

    def test_there_is_at_least_one_slot(self, make: MakeSupervisor) -> None:
        with pytest.raises(ValueError, match="slots"):
            make(slots=0)
