"""What is given to the cache of results, and what is kept from it."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs
from support.cached_results import measured

from schemas.messages import EvaluationRequest, EvaluationResult, Measurement, SyntheticLoad
from spica_async.evaluate.cache.port import NoCache
from spica_async.evaluate.reuse import Reuse

REQUEST = EvaluationRequest(
    evaluation_id="e",
    sweep_id="s",
    sample={
        "model_name": "some/model",
        "router_mode": "round_robin",
        "enable_throughput_scaling": False,
        "enable_load_scaling": False,
    },
    load=SyntheticLoad(isl=100, osl=10, requests=4, concurrency=2),
)
FAILED = Measurement(outcome="failed", cause="delivery_limit", detail="it came back too often")


class Kept(NoCache):
    """Notes who has measured what it is given."""

    def __init__(self) -> None:
        self.workers: list[str] = []

    async def put(self, key: str, measurement: Measurement, *, worker: str, noisy: bool) -> None:
        self.workers.append(worker)


def result_of(
    worker: str, *, own_files: bool, measurement: Measurement | None = None
) -> EvaluationResult:
    return EvaluationResult(
        evaluation_id="e",
        sweep_id="s",
        worker=worker,
        measurement=measurement or measured(),
        wall_seconds=1.0,
        own_files=own_files,
    )


@pytest.fixture
def cache() -> Kept:
    return Kept()


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def reuse(cache: Kept, notes: list[str]) -> Reuse:
    return Reuse(cache, "engine", answers=True, note=notes.append)


async def test_what_an_older_worker_measures_with_files_of_its_own_stays_out(
    reuse: Reuse, cache: Kept, notes: list[str]
) -> None:
    for worker, own_files in [("a", False), ("b", True), ("b", True), ("c", True), ("a", False)]:
        await reuse.keep(REQUEST, result_of(worker, own_files=own_files))
    assert cache.workers == ["a", "a"]
    assert [note.partition(",")[0] for note in notes] == [
        "worker b is of an older version",
        "worker c is of an older version",
    ]


async def test_what_failed_says_nothing_of_its_worker(reuse: Reuse, notes: list[str]) -> None:
    await reuse.keep(REQUEST, result_of("a", own_files=True, measurement=FAILED))
    assert notes == []


async def test_without_an_observer_it_is_logged() -> None:
    reuse = Reuse(NoCache(), "engine", answers=True)
    with capture_logs() as lines:
        await reuse.keep(REQUEST, result_of("a", own_files=True))
    assert [line["event"] for line in lines] == ["worker.other_files"]


def test_a_result_of_an_older_worker_can_be_read() -> None:
    written = result_of("a", own_files=True).model_dump_json(exclude={"own_files"})
    assert not EvaluationResult.model_validate_json(written).own_files
