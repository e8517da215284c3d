"""Who listens to what is published of sweeps over a broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika

from schemas.lifecycle import SWEEP_EVENT, SweepEvent, SweepFinished
from spica_async.bus.address import BrokerAddress
from spica_async.bus.rabbitmq.bus import RabbitBus


@asynccontextmanager
async def bus_at(url: str, name: str, *, patience_seconds: float = 60) -> AsyncIterator[RabbitBus]:
    async with RabbitBus.open(
        BrokerAddress.from_options(url),
        name=f"spica-{name}",
        private_queues=f"spica.{name}",
        patience_seconds=patience_seconds,
    ) as bus:
        yield bus


@asynccontextmanager
async def subscribed(url: str) -> AsyncIterator[aio_pika.abc.AbstractQueue]:
    """A durable queue of all that is published of sweeps."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        exchange = await channel.declare_exchange("spica.events", "topic", durable=True)
        queue = await channel.declare_queue("all", durable=True)
        for kind in ("sweep.#", "branch.#", "candidate.#", "best.#", "front.#"):
            await queue.bind(exchange, kind)
        yield queue


async def read(queue: aio_pika.abc.AbstractQueue) -> list[SweepEvent]:
    """What is in the queue, up to the end of a sweep; its topic is the kind."""
    events: list[SweepEvent] = []
    async with asyncio.timeout(30):
        while not events or not isinstance(events[-1].data, SweepFinished):
            message = await queue.get(no_ack=True, fail=False)
            if message is None:
                await asyncio.sleep(0.02)
                continue
            events.append(SWEEP_EVENT.validate_json(message.body))
            assert message.routing_key == events[-1].data.kind
            assert message.type == events[-1].type
    return events


def assert_whole(events: list[SweepEvent]) -> None:
    """Each at least once, and in order: one that comes again comes with all behind it."""
    last = 0
    for event in events:
        assert event.sequence <= last + 1, "a gap"
        last = event.sequence
    assert max(event.sequence for event in events) == last
