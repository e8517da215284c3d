"""One coordinator's evaluations, and what they are answered with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from schemas.messages import (
    EVALUATION_COMPLETED,
    EvaluationCompleted,
    EvaluationRequest,
    EvaluationResult,
    Measurement,
    ModelFiles,
    SyntheticLoad,
)
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Consumer, Message
from spica_async.bus.topology import requests_queue, results_queue
from spica_async.evaluate.fleet import Fleet
from spica_async.evaluate.in_flight import Evaluations

FEASIBLE = Measurement(outcome="feasible", report={"x": 1.0})
REQUESTS, RESULTS = requests_queue("engine").name, results_queue("sweep").name


@asynccontextmanager
async def opened(
    bus: MemoryBus, parallel: int = 4, **options: Any
) -> AsyncIterator[tuple[Evaluations, Consumer]]:
    """The coordinator's side, and a consumer of its requests."""
    async with AsyncExitStack() as stack:
        evaluations = await stack.enter_async_context(
            Evaluations(
                bus, Fleet("engine"), coordinator="sweep", parallel=parallel, **options
            ).open()
        )
        requests = await stack.enter_async_context(bus.consume(REQUESTS, prefetch=100))
        yield evaluations, requests


def request(
    name: str = "one", sweep: str = "sweep", model: ModelFiles | None = None
) -> EvaluationRequest:
    return EvaluationRequest(
        evaluation_id=name,
        sweep_id=sweep,
        sample={"backend": "vllm"},
        model=model,
        load=SyntheticLoad(isl=1, osl=1, requests=1, concurrency=1),
    )


def completed(
    name: str = "one",
    worker: str = "w",
    measurement: Measurement = FEASIBLE,
    model_sha256: str | None = None,
) -> bytes:
    result = EvaluationResult(
        evaluation_id=name,
        sweep_id="sweep",
        worker=worker,
        measurement=measurement,
        model_sha256=model_sha256,
        wall_seconds=0.0,
    )
    return EvaluationCompleted(source="test", data=result).model_dump_json().encode()


async def send(bus: MemoryBus, body: bytes) -> None:
    await bus.publish(RESULTS, Message(body, "some id", EVALUATION_COMPLETED))


async def until_discarded(evaluations: Evaluations, count: int) -> None:
    while evaluations.discarded.total() < count:  # noqa: ASYNC110  # the tally has no event
        await asyncio.sleep(0)
