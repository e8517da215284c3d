"""What strangers put into queues and exchanges: garbage, by hand and by the thousand."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Self

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractExchange
from fuzzing.mutation import all_places
from support.broker import VirtualHost
from support.faults.workers import FINGERPRINT

from schemas.control import RollCall, RollCalled, SweepCancellation, SweepCancelled
from schemas.envelope import Envelope
from schemas.events import (
    EvaluationStart,
    EvaluationStarted,
    WorkerHeartbeat,
    WorkerLeft,
    WorkerStatus,
)
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
from spica_async.bus.topology import (
    CONTROL_EXCHANGE,
    DEAD_QUEUE,
    EVENTS_EXCHANGE,
    WORKER_HEARTBEAT_TOPIC,
    requests_queue,
    results_queue,
)

HUGE_BYTES: Final = 10 * 10**6
_AT_ONCE = 200
_STRANGE: Final[tuple[Any, ...]] = (
    *(None, True, -1, 0, 1e308, 10**30, [], [[]], {}, {"a": None}),
    *("", "x", "\x00", "\u00e9" * 300, "x" * 5000),
)


@dataclass(frozen=True, slots=True)
class Litter:
    """One message of a stranger's, with the kind that it is of."""

    kind: str
    body: bytes
    type: str | None = None
    reply_to: str | None = None
    headers: dict[str, Any] | None = None


def garbage(message_type: str, *, reply_to: str | None = None) -> list[Litter]:
    """One of each kind, for readers of this type of message."""
    return [
        Litter("nothing", b""),
        Litter("not_json", b"\xff\xfe{]", message_type, reply_to),
        Litter("not_an_object", b"[" * 5000, message_type, reply_to),
        Litter("wrong_type", b"{}", "somebody.else.v1", reply_to),
        Litter("unknown_version", b"{}", message_type.replace(".v1", ".v999"), reply_to),
        Litter("empty", b"{}", message_type, reply_to),
        Litter("huge", b"x" * HUGE_BYTES, message_type, reply_to),
        Litter("huge_json", json.dumps(["x" * 100] * 95_000).encode(), message_type, reply_to),
        Litter("odd_headers", b"{}", message_type, reply_to, {"x-delivery-count": "many"}),
    ]


def results_for_nobody(sweep_id: str) -> list[Litter]:
    """Results that are well-formed, and of no evaluation that the sweep waits for."""
    strangers = [("other-sweep", "other-sweep-agg-0"), (sweep_id, f"{sweep_id}-agg-999999")]
    return [_litter("unknown", result(sweep, evaluation)) for sweep, evaluation in strangers]


def request(sweep_id: str, evaluation_id: str) -> EvaluationRequested:
    """A sound request of somebody."""
    data = EvaluationRequest(
        evaluation_id=evaluation_id,
        sweep_id=sweep_id,
        sample={"backend": "vllm", "tp": 2},
        load=SyntheticLoad(isl=100, osl=10, requests=4, concurrency=2),
        max_eval_seconds=5,
    )
    return EvaluationRequested(source="stranger", subject=evaluation_id, data=data)


def result(sweep_id: str, evaluation_id: str) -> EvaluationCompleted:
    """A sound result of somebody."""
    data = EvaluationResult(
        evaluation_id=evaluation_id,
        sweep_id=sweep_id,
        worker="stranger",
        measurement=Measurement(outcome="feasible", report={"output_throughput_tok_s": 1.0}),
        wall_seconds=1.0,
    )
    return EvaluationCompleted(source="stranger", subject=evaluation_id, data=data)


class Litterer:
    """Publishes as a stranger does, past everything of ours. Made by `open`."""

    def __init__(self, channel: AbstractChannel, sweep_id: str) -> None:
        self._channel = channel
        self._sweep_id = sweep_id
        self._exchanges: dict[str, AbstractExchange] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, vhost: VirtualHost, sweep_id: str) -> AsyncIterator[Self]:
        """A connection of its own; `sweep_id` names the results queue that it knows of."""
        async with await aio_pika.connect(vhost.url) as connection:
            yield cls(await connection.channel(), sweep_id)

    async def requests(self, litter: list[Litter]) -> None:
        """Put it into the requests' queue."""
        await self._publish("", requests_queue(FINGERPRINT).name, litter)

    async def results(self, litter: list[Litter]) -> None:
        """Put it into the sweep's results queue."""
        await self._publish("", results_queue(self._sweep_id).name, litter)

    async def dead_letters(self, litter: list[Litter]) -> None:
        """Put it into the dead-letter queue, as if it had died."""
        await self._publish("", DEAD_QUEUE.name, litter)

    async def events(self, litter: list[Litter]) -> None:
        """Publish it as an event of a worker's."""
        await self._publish(EVENTS_EXCHANGE, WORKER_HEARTBEAT_TOPIC, litter)

    async def control(self, litter: list[Litter]) -> None:
        """Broadcast it to every worker."""
        await self._publish(CONTROL_EXCHANGE, "", litter)

    async def _publish(self, exchange: str, routing_key: str, litter: list[Litter]) -> None:
        target = self._channel.default_exchange
        if exchange:
            target = await self._channel.get_exchange(exchange, ensure=False)

        async def publish(one: Litter) -> None:
            message = aio_pika.Message(
                one.body, type=one.type, reply_to=one.reply_to, headers=one.headers
            )
            await target.publish(message, routing_key=routing_key, mandatory=False)

        for first in range(0, len(litter), _AT_ONCE):
            async with asyncio.TaskGroup() as group:
                for one in litter[first : first + _AT_ONCE]:
                    group.create_task(publish(one))


def publish_undecodable(vhost: VirtualHost, queue: str) -> None:
    """Put a message into a queue whose type is not UTF-8, as a client in another language may."""
    vhost.node.evaluate(
        f'rabbit_basic:publish({{resource, <<"{vhost.name}">>, exchange, <<>>}}, <<"{queue}">>,'
        " {'P_basic', undefined, undefined, [], 2, undefined, undefined, undefined, undefined,"
        ' undefined, undefined, <<99, 97, 102, 233>>, undefined, undefined, undefined}, <<"{}">>)'
    )


class Fuzzer:
    """Sound messages of strangers with something changed in each; the same from the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        status = WorkerStatus(
            worker="stranger",
            host="elsewhere",
            pid=1,
            engine_fingerprint=FINGERPRINT,
            state="ready",
            slots=1,
            evaluations=["stranger-1"],
            interval_seconds=0.5,
        )
        start = EvaluationStart(
            evaluation_id="stranger-1", sweep_id="stranger", worker="stranger", slot=0
        )
        cancellation = SweepCancellation(sweep_id="stranger", grace_seconds=0)
        self._request = request("stranger", "stranger-1")
        self._result = result("stranger", "stranger-1")
        self._events = (
            WorkerHeartbeat(source="stranger", data=status),
            WorkerLeft(source="stranger", data=status),
            EvaluationStarted(source="stranger", data=start),
        )
        self._control = (
            RollCalled(source="stranger", data=RollCall(coordinator="stranger")),
            SweepCancelled(source="stranger", data=cancellation),
        )

    def requests(self, count: int) -> list[Litter]:
        """Requests; where one is still sound, its results queue does not exist."""
        return [self._spoil(self._request, reply_to="spica.results.nobody") for _ in range(count)]

    def results(self, count: int) -> list[Litter]:
        """Results."""
        return [self._spoil(self._result) for _ in range(count)]

    def dead_letters(self, count: int) -> list[Litter]:
        """Requests and results."""
        return [
            self._spoil(self._random.choice((self._request, self._result))) for _ in range(count)
        ]

    def events(self, count: int) -> list[Litter]:
        """What workers publish of themselves."""
        return [self._spoil(self._random.choice(self._events)) for _ in range(count)]

    def control(self, count: int) -> list[Litter]:
        """What workers are commanded."""
        return [self._spoil(self._random.choice(self._control)) for _ in range(count)]

    def _spoil(self, envelope: Envelope[Any], *, reply_to: str | None = None) -> Litter:
        how: Callable[[Envelope[Any]], bytes] = self._random.choice(
            (self._change_bytes, self._cut, self._change_value, self._change_value)
        )
        message_type: str | None = envelope.type
        if self._random.random() < 0.1:
            message_type = self._random.choice(
                (None, "x", EVALUATION_REQUESTED, EVALUATION_COMPLETED, f"{envelope.type}0")
            )
        if self._random.random() < 0.1:
            reply_to = None
        return Litter("fuzzed", how(envelope), message_type, reply_to)

    def _change_bytes(self, envelope: Envelope[Any]) -> bytes:
        body = bytearray(envelope.model_dump_json().encode())
        for _ in range(self._random.randint(1, 8)):
            body[self._random.randrange(len(body))] = self._random.randrange(256)
        return bytes(body)

    def _cut(self, envelope: Envelope[Any]) -> bytes:
        body = envelope.model_dump_json().encode()
        return body[: self._random.randrange(len(body))]

    def _change_value(self, envelope: Envelope[Any]) -> bytes:
        document = json.loads(envelope.model_dump_json())
        places = list(all_places(document))
        for _ in range(self._random.randint(1, 3)):
            holder, key = self._random.choice(places)
            if self._random.random() < 0.3 and isinstance(holder, dict):
                holder.pop(key, None)
            else:
                holder[key] = self._random.choice(_STRANGE)
        return json.dumps(document).encode()


def _litter(kind: str, envelope: Envelope[Any]) -> Litter:
    return Litter(kind, envelope.model_dump_json().encode(), envelope.type)
