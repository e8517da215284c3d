"""What a worker publishes of itself, and what it does when commanded."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.worker_desk import (
    REQUESTS,
    WAIT_SECONDS,
    Behaviour,
    FakeSlot,
    feasible,
    hang,
    next_status,
    open_desk,
)

from schemas.control import ROLL_CALL, SWEEP_CANCELLED
from schemas.events import EvaluationStarted, WorkerLeft
from schemas.messages import EvaluationRequest, Measurement, TraceLoad, TraceSource
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import BusUnavailableError, Message
from spica_async.bus.topology import EVALUATION_STARTED_TOPIC
from spica_async.engine.versions import engine_versions
from workers.port import ChildDeaths
from workers.traces import TraceUnavailableError

TRACE = TraceLoad(
    path="/theirs/trace.jsonl",
    sources=[TraceSource(url="http://coordinator/trace")],
    sha256="0" * 64,
    size_bytes=1,
    requests=1,
    total_tokens=1,
)


class TestPresence:
    async def test_a_worker_publishes_how_it_is_from_joining_to_leaving(self) -> None:
        desk = await open_desk()
        may_start, go = asyncio.Event(), asyncio.Event()

        async def wait_to_start(slot: FakeSlot) -> None:
            await may_start.wait()

        async def wait(*_: object) -> Measurement:
            await go.wait()
            return feasible()

        desk.before_start, desk.behave = wait_to_start, wait
        request = desk.request()
        async with desk.bus.subscribe("worker.#") as events, asyncio.TaskGroup() as group:
            supervisor = desk.supervisor(slots=2, heartbeat_seconds=7, drain_seconds=1000)
            running = group.create_task(supervisor.run())
            joining = await next_status(events, state="starting")
            assert (joining.worker, joining.host) == ("here", socket.gethostname())
            assert (joining.pid, joining.engine_fingerprint) == (os.getpid(), "engine")
            assert joining.versions == engine_versions()
            assert (joining.slots, joining.evaluations) == (2, [])
            assert (joining.trouble, joining.interval_seconds) == (None, 7)
            may_start.set()
            await next_status(events, state="ready")
            await desk.send(request)
            await desk.until(lambda: desk.evaluated)
            supervisor.stopping.set()
            await next_status(events, state="draining", evaluations=[request.evaluation_id])
            go.set()
            await running
            async with asyncio.timeout(WAIT_SECONDS):
                while (event := await anext(events)).topic != "worker.left":
                    pass
            left = WorkerLeft.model_validate_json(event.message.body)
        assert (left.source, left.subject) == ("spica/worker/here", "here")
        assert left.data.evaluations == []

    async def test_heartbeats_come_by_themselves(self) -> None:
        desk = await open_desk()
        async with (
            desk.bus.subscribe("worker.heartbeat") as events,
            desk.working(heartbeat_seconds=0.01),
        ):
            for _ in range(5):
                await next_status(events)

    async def test_a_roll_call_is_answered_at_once(self) -> None:
        desk = await open_desk()
        async with desk.bus.subscribe("worker.heartbeat") as events, desk.working():
            await next_status(events, state="ready")
            await desk.call_roll()
            await next_status(events)

    async def test_events_that_cannot_be_published_stop_no_work(self) -> None:
        class MuteBus(MemoryBus):
            async def publish_event(
                self, topic: str, message: Message, *, confirmed: bool = False
            ) -> None:
                raise BusUnavailableError("away")

        desk = await open_desk(MuteBus())
        with capture_logs() as logs:
            async with desk.working() as supervisor:
                await desk.send(desk.request(), desk.request())
                await desk.results(2)
        assert supervisor.oddities["event_lost"] >= 3
        assert len([entry for entry in logs if entry["event"] == "worker.event_lost"]) == 1

    async def test_events_that_take_for_ever_hold_up_no_work(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class SlowBus(MemoryBus):
            async def publish_event(
                self, topic: str, message: Message, *, confirmed: bool = False
            ) -> None:
                await asyncio.Event().wait()

        monkeypatch.setattr("workers.presence._GOODBYE_SECONDS", 0.01)
        monkeypatch.setattr("workers.presence._MAX_PENDING_STARTS", 2)
        desk = await open_desk(SlowBus())
        async with desk.working() as supervisor:
            await desk.send(*(desk.request() for _ in range(5)))
            await desk.results(5)
        # Two starts wait to be published, three have no room, and leaving was not announced.
        assert supervisor.oddities == {"event_lost": 4}

    async def test_only_what_runs_for_a_moment_is_published(self) -> None:
        desk = await open_desk()
        async with desk.bus.subscribe(EVALUATION_STARTED_TOPIC) as events, desk.working():
            await desk.send(desk.request(), desk.request())
            await desk.results(2)
            desk.behave = hang_in("sweep")
            long = desk.request()
            await desk.send(long)
            async with asyncio.timeout(10):
                event = await anext(events)
        assert EvaluationStarted.model_validate_json(event.message.body).subject == (
            long.evaluation_id
        )


class TestCancelling:
    async def test_what_has_not_started_is_dropped(self) -> None:
        desk = await open_desk()
        other = desk.request(sweep_id="other")
        async with desk.bus.subscribe("worker.heartbeat") as events, desk.working():
            await next_status(events, state="ready")
            await desk.cancel()
            await desk.send(desk.request(), desk.request(), other)
            [result] = await desk.results(1)
        assert result.evaluation_id == other.evaluation_id
        assert desk.evaluated == [other]
        assert await desk.left() == 0

    async def test_what_runs_is_ended_without_a_result(self) -> None:
        desk = await open_desk()
        desk.behave = hang_in("sweep")
        other = desk.request(sweep_id="other")
        async with desk.working():
            await desk.send(desk.request(), other)
            await desk.until(lambda: desk.evaluated)
            await desk.cancel()
            [result] = await desk.results(1)
            assert desk.slots[0].ends == 1
        assert result.evaluation_id == other.evaluation_id
        assert await desk.left() == 0

    async def test_what_runs_may_end_within_the_grace(self) -> None:
        desk = await open_desk()
        go = asyncio.Event()

        async def wait(*_: object) -> Measurement:
            await go.wait()
            return feasible()

        desk.behave = wait
        async with desk.working():
            await desk.send(desk.request())
            await desk.until(lambda: desk.evaluated)
            await desk.cancel(grace_seconds=1000)
            await desk.cancel(grace_seconds=2000)
            go.set()
            await desk.results(1)
            assert desk.slots[0].ends == 0

    async def test_a_later_word_may_shorten_the_grace(self) -> None:
        desk = await open_desk()
        desk.behave = hang_in("sweep")
        async with desk.working():
            await desk.send(desk.request(), desk.request(sweep_id="other"))
            await desk.until(lambda: desk.evaluated)
            await desk.cancel(grace_seconds=1000)
            await desk.cancel(grace_seconds=0.01)
            await desk.results(1)

    async def test_who_waits_for_anothers_result_is_ended_without_harm_to_its_child(self) -> None:
        desk = await open_desk()
        desk.behave = hang
        request = desk.request()
        async with desk.bus.subscribe("worker.heartbeat") as events, desk.working(slots=2):
            await desk.send(request, request)
            await desk.until(lambda: desk.evaluated)
            await desk.cancel(grace_seconds=1000)
            # Its grace is for what runs.
            await desk.call_roll()
            await next_status(events, evaluations=[request.evaluation_id])
            desk.behave = hang_in("sweep")
            await desk.send(desk.request(sweep_id="other"))
            await desk.results(1)
            assert sorted(slot.ends for slot in desk.slots) == [0, 0]
        assert await desk.left() == 1

    async def test_a_stop_during_the_grace_gives_back_what_runs(self) -> None:
        desk = await open_desk()
        desk.behave = hang
        async with desk.working():
            await desk.send(desk.request())
            await desk.until(lambda: desk.evaluated)
            await desk.cancel(grace_seconds=1000)
        assert await desk.left() == 1


async def test_unknown_and_garbled_words_are_counted_and_logged_once_per_kind() -> None:
    garbled = [
        Message(b"", "m", ROLL_CALL),
        Message(b"[]", "m", SWEEP_CANCELLED),
        Message(b"\xff", "m", SWEEP_CANCELLED),
    ]
    unknown = [Message(b"", "m", "spica.worker.roll_call.v2"), Message(b"", "m", "")]
    desk = await open_desk()
    with capture_logs() as logs:
        async with desk.bus.subscribe("worker.heartbeat") as events, desk.working() as supervisor:
            await next_status(events, state="ready")
            for message in (*garbled, *unknown):
                await desk.bus.broadcast(message)
            await desk.cancel("x" * 1000)
            await desk.call_roll()
            await next_status(events)
    assert supervisor.oddities == {"malformed_order": 4, "unknown_order": 2}
    warned = [entry["event"] for entry in logs if entry["log_level"] == "warning"]
    assert warned == ["worker.malformed_order", "worker.unknown_order"]


class TestTraces:
    async def test_a_child_gets_the_local_path_and_no_way_to_the_sources(self) -> None:
        traces = FakeTraces()
        desk = await open_desk()
        in_use: list[int] = []

        async def look(*_: object) -> Measurement:
            in_use.append(traces.in_use)
            return feasible()

        desk.behave = look
        async with desk.working(traces=traces):
            await desk.send(desk.request(load=TRACE))
            await desk.results(1)
        [evaluated] = desk.evaluated
        assert evaluated.load == TRACE.model_copy(update={"path": "/here/trace", "sources": []})
        assert (in_use, traces.in_use) == ([1], 0)

    async def test_without_a_provider_the_path_is_used_as_it_is(self) -> None:
        desk = await open_desk()
        request = desk.request(load=TRACE)
        async with desk.working():
            await desk.send(request)
            await desk.results(1)
        assert desk.evaluated == [request]

    async def test_a_slot_without_the_trace_pauses_and_says_so(self) -> None:
        desk = await open_desk()
        async with (
            desk.bus.subscribe("worker.heartbeat") as events,
            desk.working(traces=FakeTraces(failures=1), trace_pause_seconds=0.05),
        ):
            await desk.send(desk.request(load=TRACE))
            troubled = await next_status(events, trouble="no trace today")
            assert troubled.evaluations == []
            status = await desk.bus.queue_status(REQUESTS.name)
            assert (status.ready, status.consumers) == (1, 0)
            await next_status(events, trouble=None)
            await desk.results(1)
        assert len(desk.evaluated) == 1

    async def test_a_trace_that_is_nowhere_fails_the_evaluation_in_the_end(self) -> None:
        traces = FakeTraces(failures=1000)
        desk = await open_desk()
        request = desk.request(load=TRACE)
        async with desk.working(traces=traces, trace_pause_seconds=0):
            await desk.send(request)
            [result] = await desk.results(1)
        assert result.measurement.cause == "trace_unavailable"
        assert result.measurement.detail == "no trace today"
        assert traces.uses == 4
        assert desk.evaluated == []


class FakeTraces:
    """Has every trace, after so many failures."""

    def __init__(self, failures: int = 0) -> None:
        self.uses = 0
        self.in_use = 0
        self._failures = failures

    @asynccontextmanager
    async def use(self, load: TraceLoad) -> AsyncIterator[Path]:
        self.uses += 1
        if self.uses <= self._failures:
            raise TraceUnavailableError("no trace today")
        self.in_use += 1
        try:
            yield Path("/here/trace")
        finally:
            self.in_use -= 1


def hang_in(sweep_id: str) -> Behaviour:
    """Evaluate those of other sweeps."""

    async def behave(
        slot: FakeSlot, request: EvaluationRequest, deaths: ChildDeaths
    ) -> Measurement:
        if request.sweep_id == sweep_id:
            await asyncio.Event().wait()
        return feasible()

    return behave
