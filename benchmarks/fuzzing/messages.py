"""Messages to a worker, a coordinator and a daemon; each must do its work after them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal
from uuid import uuid4

import structlog
from support.asking import REQUESTS, RESULTS, completed, request
from support.asking import opened as asking
from support.fake_control import FakeControl
from support.worker_desk import Desk

from fuzzing.harness import Wrong
from fuzzing.mutation import STRANGE, change_bytes, change_document, change_lines, encoded
from schemas.control import RollCall, RollCalled, SweepCancellation, SweepCancelled
from schemas.daemon import SWEEP_COMMAND, SweepCommand, SweepCommandAnswered, SweepCommanded
from schemas.envelope import MAX_MESSAGE_BYTES
from schemas.events import (
    EvaluationStart,
    EvaluationStarted,
    WorkerHeartbeat,
    WorkerJoined,
    WorkerLeft,
    WorkerStatus,
)
from schemas.messages import (
    EVALUATION_COMPLETED,
    EvaluationCompleted,
    EvaluationRequest,
    EvaluationRequested,
    SyntheticLoad,
    TraceLoad,
    TraceSource,
)
from spica_async.bus.memory import MemoryBus, _Entry
from spica_async.bus.port import Message, QueueSpec
from spica_async.bus.topology import (
    COMMANDS_QUEUE,
    DEAD_QUEUE,
    WORKER_HEARTBEAT_TOPIC,
    declare,
    requests_queue,
    results_queue,
)
from spica_async.evaluate.in_flight import Watch
from spica_async.service.commands import Commands

To = Literal["worker", "all workers", "results", "dead letters", "events", "daemon"]

_ANSWERS: Final = "fuzz.answers"
_TIMES: Final = (
    *("2026-01-01", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", 0, -1e12, 1e308),
    *("2026-01-01T00:00:00", "2026-01-01T00:00:00.123456789Z", "2026-02-30T00:00:00Z", "now", 1e11),
)
_VALUES: Final = (*STRANGE, *_TIMES, "one", "sweep", "engine")
_LARGE: Final = 1_100_000


@dataclass(frozen=True, slots=True)
class Letter:
    """A message, and whom it goes to."""

    to: To
    message: Message


class Messages:
    """See the module."""

    def __init__(self, loop: asyncio.Runner) -> None:
        self._loop = loop

    def make(self, rng: random.Random) -> Letter:
        """See `Subject.make`."""
        to: To = rng.choice(
            ("worker", "worker", "all workers", "results", "dead letters", "events", "daemon")
        )
        document, message_type = rng.choice(_SOUND[to])
        if rng.random() < 0.5:
            # Of old ones a worker asks whether they are still awaited.
            document = {**document, "time": "2026-01-01T00:00:00Z"}
        body = _body(rng, document)
        if to in ("all workers", "events"):
            body = body[:MAX_MESSAGE_BYTES]
        if rng.random() < 0.05:
            types = (None, "", "x", f"{message_type}0", EVALUATION_COMPLETED, "\x00", "x" * 1000)
            message_type = rng.choice(types) or ""
        answers = results_queue("sweep").name if to == "dead letters" else _ANSWERS
        reply_to: str | None = rng.choice(
            (answers, answers, answers, "nobody", None, "", "x" * 300)
        )
        return Letter(
            to, Message(body, rng.choice(("a", "", "one", "x" * 300)), message_type, reply_to)
        )

    def try_one(self, case: Letter) -> str:
        """See `Subject.try_one`."""
        return self._loop.run(_TRIED[case.to](case))


@contextmanager
def opened() -> Iterator[Messages]:
    """What takes messages; what it logs is dropped."""
    structlog.configure(processors=[_drop])
    with asyncio.Runner() as loop:
        yield Messages(loop)


def _drop(_logger: object, _method: str, _event: Any) -> Any:
    raise structlog.DropEvent


async def _to_worker(case: Letter) -> str:
    """Send it to a worker, and an honest request after it."""
    bus = MemoryBus()
    await declare(bus, requests_queue("engine"))
    await bus.declare_queue(QueueSpec(_ANSWERS))
    desk = Desk(bus)
    # The guard is part of what reads a load.
    async with desk.working(memory_limit_bytes=2**30) as supervisor:
        if case.to == "worker":
            await _publish(bus, REQUESTS, case.message)
        else:
            await bus.broadcast(case.message)
        honest = EvaluationRequest(
            evaluation_id="honest",
            sweep_id="honest",
            sample={},
            load=SyntheticLoad(isl=1, osl=1, requests=1, concurrency=1),
        )
        await desk.send(honest, reply_to=_ANSWERS)
        async with bus.consume(_ANSWERS, prefetch=1) as answers:
            while True:
                delivery = await anext(answers)
                await delivery.ack()
                result = EvaluationCompleted.model_validate_json(delivery.message.body).data
                if result.evaluation_id == "honest":
                    break
        if desk.evaluated_ids.count("honest") != 1:
            raise Wrong(
                f"an honest request was evaluated otherwise than once: {desk.evaluated_ids}"
            )
        return next(iter(supervisor.oddities), "handled")


async def _to_coordinator(case: Letter) -> str:
    """Send it to who waits for a result, and the result after it."""
    bus = MemoryBus()
    views: list[Any] = []
    async with asking(bus, on_fleet=views.append, watch=Watch(every_seconds=0.01)) as (
        evaluations,
        requests,
    ):
        waiting = asyncio.create_task(evaluations.evaluate(request("one")))
        taken = await anext(requests)
        match case.to:
            case "results":
                await _publish(bus, RESULTS, case.message)
            case "events":
                await bus.publish_event(WORKER_HEARTBEAT_TOPIC, case.message)
            case _:
                # As a request that a worker refuses, and straight into the queue.
                await _publish(bus, REQUESTS, case.message)
                async with asyncio.timeout(5):
                    refused = await anext(requests)
                await refused.nack(requeue=False)
                await _publish(bus, DEAD_QUEUE.name, case.message)
        await bus.publish(RESULTS, Message(completed("one"), "b", EVALUATION_COMPLETED))
        await taken.ack()
        async with asyncio.timeout(5):
            result = await waiting
            second = asyncio.create_task(evaluations.evaluate(request("two")))
            await (await anext(requests)).ack()
            await bus.publish(RESULTS, Message(completed("two"), "c", EVALUATION_COMPLETED))
            await second
        # What is shown of the fleet is read from what came, too.
        evaluations._fleet.view(0.0)  # noqa: SLF001  # it is shown twice a second, which is not waited for
        return result.measurement.cause or next(iter(evaluations.discarded), "handled")


async def _to_daemon(case: Letter) -> str:
    """Give it to a daemon as a command, and an honest one after it."""
    bus = MemoryBus()
    await bus.declare_queue(QueueSpec(_ANSWERS))
    control = FakeControl()
    async with _obeying(bus, control), asyncio.timeout(20):
        await _publish(bus, COMMANDS_QUEUE.name, case.message)
        honest = SweepCommanded(
            id=uuid4().hex, source="fuzz", data=SweepCommand(action="cancel", sweep_id="none")
        )
        body = honest.model_dump_json().encode()
        await bus.publish(COMMANDS_QUEUE.name, Message(body, honest.id, SWEEP_COMMAND, _ANSWERS))
        others: list[SweepCommandAnswered] = []
        async with bus.consume(_ANSWERS, prefetch=1) as answers:
            while True:
                delivery = await anext(answers)
                await delivery.ack()
                answer = SweepCommandAnswered.model_validate_json(delivery.message.body)
                if answer.data.command == honest.id:
                    break
                others.append(answer)
        await _settled(bus, COMMANDS_QUEUE.name)
        while (await bus.queue_status(_ANSWERS)).ready:
            async with bus.consume(_ANSWERS, prefetch=1) as answers:
                delivery = await anext(answers)
                await delivery.ack()
                others.append(SweepCommandAnswered.model_validate_json(delivery.message.body))
        for other in others:
            problem = other.data.problem
            if problem is not None and problem.status == 500:
                raise Wrong(f"a command made the daemon fail: {problem.detail}")
        return "obeyed" if control.known else "not obeyed"


@asynccontextmanager
async def _obeying(bus: MemoryBus, control: FakeControl) -> AsyncIterator[None]:
    await declare(bus, COMMANDS_QUEUE)
    async with asyncio.TaskGroup() as group:
        obeying = group.create_task(Commands(bus, control, "fuzz").run())
        yield
        obeying.cancel()


async def _settled(bus: MemoryBus, queue: str) -> None:
    """Wait until nobody holds a message of the queue."""
    while any(consumer.unsettled for consumer in bus._existing(queue)._consumers):  # noqa: ASYNC110, SLF001  # the port does not say
        await asyncio.sleep(0.0005)


async def _publish(bus: MemoryBus, queue: str, message: Message) -> None:
    # Past the port, which refuses what is too long: a stranger's client does not.
    bus._existing(queue).put(_Entry(message))  # noqa: SLF001  # as said above


def _body(rng: random.Random, document: Any) -> bytes:
    match rng.randrange(10):
        case 0 | 1:
            return change_bytes(rng, json.dumps(document).encode())
        case 2:
            return encoded(rng, change_lines(rng, json.dumps(document, indent=1)))
        case 3 if rng.random() < 0.2:
            return rng.choice(
                (
                    b"",
                    b"[" * 100_000,
                    b'{"a":' * 100_000,
                    b" " * _LARGE,
                    json.dumps({**document, "x": "y" * _LARGE}).encode(),
                    json.dumps(["x" * 100] * 10_000).encode(),
                    json.dumps(document).encode() * 2,
                    b"\xef\xbb\xbf" + json.dumps(document).encode(),
                )
            )
        case 4 if rng.random() < 0.3:
            return json.dumps(_with_much(rng, document)).encode()
    return encoded(rng, json.dumps(change_document(rng, document, _VALUES)))


def _with_much(rng: random.Random, document: dict[str, Any]) -> dict[str, Any]:
    """With a list or mapping of thousands, in the data or beside it."""
    count = rng.choice((100, 5000, 30_000))
    much: Any = rng.choice(
        (
            [str(number) for number in range(count)],
            list(range(count)),
            {f"key {number}": number for number in range(count)},
            {f"key {number}": "x" for number in range(count)},
            "x" * count * 10,
        )
    )
    changed = json.loads(json.dumps(document))
    data = changed["data"]
    data[rng.choice((*data, "x"))] = much
    return dict(changed)


def _document(envelope: Any) -> tuple[Any, str]:
    # Without what differs from one start of this program to the next.
    document = json.loads(envelope.model_dump_json(exclude={"time"}))
    return {**document, "id": "a"}, envelope.type


def _commands() -> Iterator[tuple[Any, str]]:
    small = {
        "search_space": {"model_name": "a/model", "hardware_sku": "some_gpu", "gpu_budget": 4},
        "workload": {"isl": 10, "osl": 1, "concurrency": 2, "num_request_ratio": 2.0},
    }
    submission = {"config": small, "priority": 3, "use_cache": True}
    for data in (
        {"action": "submit", "submission": submission},
        {"action": "cancel", "sweep_id": "none"},
        {"action": "pause", "sweep_id": "none"},
        {"action": "resume", "sweep_id": "none"},
    ):
        yield _document(SweepCommanded(source="fuzz", data=SweepCommand.model_validate(data)))


def _sound() -> dict[To, list[tuple[Any, str]]]:
    trace = TraceLoad(
        path="/nowhere/trace.jsonl",
        sources=[TraceSource(url="http://127.0.0.1:9/trace")],
        sha256="0" * 64,
        size_bytes=100,
        requests=3,
        total_tokens=300,
    )
    synthetic = SyntheticLoad(isl=100, osl=10, requests=4, concurrency=2)
    requests = [
        EvaluationRequested(
            source="fuzz",
            subject="one",
            data=EvaluationRequest(
                evaluation_id="one",
                sweep_id="sweep",
                sample={"backend": "vllm", "tp": 2, "model_name": "a/model"},
                load=load,
                max_eval_seconds=5,
            ),
        )
        for load in (trace, synthetic)
    ]
    status = WorkerStatus(
        worker="w",
        host="h",
        pid=1,
        engine_fingerprint="engine",
        versions={"aisimulate": "1", "ai-dynamo": "2"},
        state="ready",
        slots=2,
        evaluations=["one"],
        trouble="none",
        interval_seconds=0.5,
    )
    start = EvaluationStart(evaluation_id="one", sweep_id="sweep", worker="w", slot=0)
    orders = [
        RollCalled(source="fuzz", data=RollCall(coordinator="c")),
        SweepCancelled(source="fuzz", data=SweepCancellation(sweep_id="s", grace_seconds=0)),
    ]
    result = _document(EvaluationCompleted.model_validate_json(completed("one")))
    asked = [_document(one) for one in requests]
    kinds = (WorkerHeartbeat, WorkerJoined, WorkerLeft)
    return {
        "worker": asked,
        "all workers": [_document(one) for one in orders],
        "results": [result],
        "dead letters": [*asked, result],
        "events": [
            *(_document(kind(source="fuzz", data=status)) for kind in kinds),
            _document(EvaluationStarted(source="fuzz", data=start)),
        ],
        "daemon": list(_commands()),
    }


_SOUND: Final = _sound()
_TRIED: Final[dict[To, Callable[[Letter], Coroutine[Any, Any, str]]]] = {
    "worker": _to_worker,
    "all workers": _to_worker,
    "results": _to_coordinator,
    "dead letters": _to_coordinator,
    "events": _to_coordinator,
    "daemon": _to_daemon,
}
