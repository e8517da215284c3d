"""The coordinator's end of a measurement: a bus, and requests in flight."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import perf_counter
from uuid import uuid4

from over_broker.load import empty_request
from spica_async.bus.address import BrokerAddress
from spica_async.bus.port import Bus
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.topology import declare, requests_queue
from spica_async.evaluate.fleet import Fleet
from spica_async.evaluate.in_flight import Evaluations


@asynccontextmanager
async def opened_bus(url: str, fingerprint: str) -> AsyncIterator[Bus]:
    """A coordinator's bus, with the queue of requests for these workers."""
    async with RabbitBus.open(
        BrokerAddress.from_options(url),
        name=f"spica-coordinator-benchmark-{os.getpid()}",
        private_queues=f"spica.results.benchmark-{os.getpid()}",
    ) as bus:
        await declare(bus, requests_queue(fingerprint))
        yield bus


@asynccontextmanager
async def empty_evaluations(
    bus: Bus, fingerprint: str, parallel: int
) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """A coordinator that is asked for one empty evaluation after the other, each by a call."""
    sweep = f"benchmark-{uuid4().hex[:8]}"
    asked = 0

    async def evaluate() -> None:
        nonlocal asked
        asked += 1
        result = await evaluations.evaluate(empty_request(sweep, asked))
        if result.measurement.outcome != "feasible":
            raise RuntimeError(f"an empty evaluation failed: {result.measurement}")

    async with Evaluations(
        bus,
        Fleet(fingerprint),
        coordinator=sweep,
        parallel=parallel,
        # A display would take the views; making them is part of the cost.
        on_fleet=lambda _: None,
    ).open() as evaluations:
        yield evaluate
        if evaluations.resent or evaluations.discarded:
            print(
                f"{sweep}: {evaluations.resent} requests were sent again, and results discarded:"
                f" {dict(evaluations.discarded)}",
                file=sys.stderr,
            )


async def one_by_one(call: Callable[[], Awaitable[None]], count: int) -> list[float]:
    """The seconds that each of `count` calls took, one after the other."""
    seconds = []
    for _ in range(count):
        began = perf_counter()
        await call()
        seconds.append(perf_counter() - began)
    return seconds


async def many_at_once(call: Callable[[], Awaitable[None]], count: int, at_once: int) -> float:
    """The seconds that `count` calls took in all, with so many under way at any time."""
    left = iter(range(count))

    async def go_on() -> None:
        for _ in left:
            await call()

    began = perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(go_on())
    return perf_counter() - began
