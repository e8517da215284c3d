"""A model that comes with its request, and performance data of the worker's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.worker_desk import Desk, FakeSlot, feasible, next_status, open_desk

from schemas.messages import EvaluationRequest, Measurement, ModelFiles
from spica_async.engine.model_files import models_folder, pack
from spica_async.engine.own_files import own_files
from workers.port import ChildDeaths

MODEL = pack({"config.json": '{"layers": 64}'})
SPOILT = MODEL.model_copy(update={"sha256": "0" * 64})
SYSTEMS = "AICONFIGURATOR_SYSTEMS_PATH"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Performance data of the worker's own."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "table").write_text("1")
    monkeypatch.setenv(SYSTEMS, str(folder))
    own_files.cache_clear()
    yield folder
    own_files.cache_clear()


def found_in(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def asked(desk: Desk, model: ModelFiles = MODEL, name: str = "mine") -> EvaluationRequest:
    return desk.request(sample={"model_name": name, "tp": 2}, model=model)


async def test_it_is_replayed_from_its_own_files_whatever_lies_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "mine"
    other.mkdir()
    (other / "config.json").write_text('{"layers": 16}')
    monkeypatch.chdir(tmp_path)
    desk = await open_desk()
    async with desk.working():
        await desk.send(asked(desk), asked(desk, name=str(other)))
        results = await desk.results(2)
    assert {result.model_sha256 for result in results} == {MODEL.sha256}
    for request in desk.evaluated:
        assert request.sample["tp"] == 2
        folder = Path(str(request.sample["model_name"]))
        assert folder == models_folder() / MODEL.sha256
        assert found_in(folder) == {"config.json": '{"layers": 64}'}
        # The child need not read it once more.
        assert request.model == MODEL.model_copy(update={"content": ""})


async def test_one_that_ships_with_the_engine_is_handed_on_as_it_is() -> None:
    desk = await open_desk()
    request = desk.request(sample={"model_name": "Qwen/Qwen3-32B"})
    async with desk.working():
        await desk.send(request)
        [result] = await desk.results(1)
    assert result.model_sha256 is None
    assert desk.evaluated == [request]


async def test_a_worker_that_cannot_have_it_gives_the_request_back_and_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(28, "No space left on device", "/cache")

    def refuse(*_: object) -> None:
        raise full

    desk = await open_desk()
    async with desk.bus.subscribe("worker.heartbeat") as events:
        with monkeypatch.context() as patch:
            patch.setattr("spica_async.engine.model_files._written", refuse)
            async with desk.working(trace_pause_seconds=1000):
                await desk.send(asked(desk))
                status = await next_status(
                    events,
                    trouble=f"model {MODEL.sha256[:12]}: its files can be written nowhere:"
                    " /cache: no space left on device",
                )
                assert status.evaluations == []
        assert await desk.left() == 1
    # Another one has room.
    async with desk.working():
        [result] = await desk.results(1)
    assert result.measurement.outcome == "feasible"


async def test_files_that_are_not_what_they_should_be_fail_in_the_end() -> None:
    desk = await open_desk()
    async with desk.working(trace_pause_seconds=0) as supervisor:
        await desk.send(asked(desk, SPOILT))
        [result] = await desk.results(1)
        assert supervisor.oddities["model_unavailable"] == 3
    assert result.measurement.outcome == "failed"
    assert result.measurement.cause == "model_unavailable"
    assert "its files have SHA-256" in str(result.measurement.detail)
    assert desk.evaluated == []


async def test_what_was_measured_while_own_data_changed_is_given_back(own: Path) -> None:
    async def change(slot: FakeSlot, request: EvaluationRequest, _: ChildDeaths) -> Measurement:
        if request.evaluation_id == "second":
            (own / "table").write_text("other")
        return feasible()

    desk = await open_desk()
    desk.behave = change
    async with desk.bus.subscribe("worker.heartbeat") as events:
        async with desk.working(trace_pause_seconds=1000):
            await desk.send(desk.request(evaluation_id="first"))
            [result] = await desk.results(1)
            assert result.measurement.outcome == "feasible"
            await desk.send(desk.request(evaluation_id="second"))
            await next_status(
                events,
                trouble="performance data that AICONFIGURATOR_* names has changed since this"
                " worker was started: start it again",
            )
        assert await desk.left() == 1
