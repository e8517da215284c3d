"""What is measured for a model that came with the request must be that of this model."""

from __future__ import annotations

import asyncio

import pytest
from support.asking import FEASIBLE, completed, opened, request, send

from schemas.messages import EvaluationResult, Measurement, ModelFiles, SyntheticLoad
from spica_async.bus.memory import MemoryBus
from spica_async.bus.topology import declare, requests_queue, results_queue
from spica_async.engine.model_files import pack
from spica_async.evaluate.in_flight import Earlier
from spica_async.evaluate.messages import UNKNOWN_WORKER

MODEL = pack({"config.json": "1"})
OTHER = pack({"config.json": "2"})


async def answered(
    model: ModelFiles | None,
    model_sha256: str | None,
    measurement: Measurement = FEASIBLE,
    worker: str = "w7",
    load: SyntheticLoad | None = None,
) -> EvaluationResult:
    """What a result of that digest comes to."""
    bus = MemoryBus()
    async with opened(bus) as (evaluations, requests):
        wanted = request(model=model)
        if load is not None:
            wanted = wanted.model_copy(update={"load": load})
        asked = asyncio.ensure_future(evaluations.evaluate(wanted))
        await anext(requests)
        result = completed(worker=worker, model_sha256=model_sha256, measurement=measurement)
        await send(bus, result)
        return await asked


@pytest.mark.parametrize(
    ("asked", "replayed"), [(MODEL, MODEL.sha256), (None, None)], ids=["own", "shipped"]
)
async def test_the_model_that_was_asked_for(asked: ModelFiles | None, replayed: str | None) -> None:
    assert (await answered(asked, replayed)).measurement.outcome == "feasible"


@pytest.mark.parametrize("replayed", [None, OTHER.sha256], ids=["older worker", "another model"])
async def test_any_other_is_no_answer(replayed: str | None) -> None:
    found = (await answered(MODEL, replayed)).measurement
    assert (found.outcome, found.cause, found.report) == ("failed", "model_unavailable", None)
    assert "worker w7 does not say that it has replayed the model's files" in str(found.detail)


@pytest.mark.parametrize(
    ("worker", "replayed"), [(UNKNOWN_WORKER, None), ("w7", MODEL.sha256)], ids=["nobody", "worker"]
)
async def test_a_failure_has_its_own_words(worker: str, replayed: str | None) -> None:
    failure = Measurement(outcome="failed", cause="delivery_limit", detail="came back too often")
    assert (await answered(MODEL, replayed, failure, worker)).measurement == failure


async def test_what_an_older_worker_fails_of_is_that_it_is_older() -> None:
    failure = Measurement(outcome="failed", cause="build_error", detail="no such model")
    found = (await answered(MODEL, None, failure)).measurement
    assert (found.outcome, found.cause) == ("failed", "model_unavailable")
    assert "is of an older version" in str(found.detail)


@pytest.mark.parametrize(
    ("report", "outcome"),
    [
        ({"mean_ttft_ms": 1.0}, "failed"),
        ({"mean_ttft_ms": 1.0, "whole.mean_ttft_ms": 2.0}, "feasible"),
    ],
    ids=["older worker", "steady"],
)
async def test_what_was_measured_of_the_whole_run_is_no_answer_of_its_steady_part(
    report: dict[str, float], outcome: str
) -> None:
    steady = SyntheticLoad(isl=1, osl=1, requests=9, concurrency=3, window="steady")
    measured = Measurement(outcome="feasible", report=report)
    found = (await answered(None, None, measured, load=steady)).measurement
    assert found.outcome == outcome
    if outcome == "failed":
        assert found.cause == "request_refused"
        assert "worker w7 has measured the whole run" in str(found.detail)


async def test_an_answer_to_an_older_version_s_request_is_asked_for_again() -> None:
    bus = MemoryBus()
    await declare(bus, requests_queue("engine"), results_queue("sweep"))
    async with opened(bus, earlier=Earlier(2, ["one"], [])) as (evaluations, requests):
        asked = asyncio.ensure_future(evaluations.evaluate(request(model=MODEL)))
        await send(bus, completed(worker="by path"))
        async with asyncio.timeout(10):
            assert (await anext(requests)).message.message_id == "one"
        await send(bus, completed(worker="by digest", model_sha256=MODEL.sha256))
        assert (await asked).worker == "by digest"
