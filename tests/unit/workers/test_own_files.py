"""What a worker measures with files of its own is marked, for others would measure otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.worker_desk import open_desk

from schemas.messages import Sample
from spica_async.result_cache import depends_on_own_files
from workers.own_files import uses_own_files

MODEL = "some/model"


async def marks(*models: str) -> list[bool]:
    """Of the results for these models."""
    desk = await open_desk()
    async with desk.working():
        await desk.send(*(desk.request(sample={"model_name": model}) for model in models))
        return [result.own_files for result in await desk.results(len(models))]


@pytest.mark.parametrize(
    "name", ["AICONFIGURATOR_SYSTEMS_PATH", "AICONFIGURATOR_MODEL_CONFIGS_PATH"]
)
async def test_with_performance_data_or_models_of_its_own(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await marks(MODEL) == [False]
    monkeypatch.setenv(name, "/own")
    assert await marks(MODEL) == [True]


async def test_with_a_folder_that_is_called_as_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "one").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert await marks("here/one", "there/one") == [True, False]


@pytest.mark.parametrize(
    "model", [MODEL, "/models/one", "./one", "../one", "~/one", "tests", "a" * 200]
)
@pytest.mark.parametrize("variable", [None, "AICONFIGURATOR_SYSTEMS_PATH"])
def test_coordinator_and_worker_of_one_host_agree(
    model: str, variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "/own")
    sample: Sample = {"model_name": model}
    assert uses_own_files(sample) == depends_on_own_files(sample)


@pytest.mark.parametrize("model", [None, "", "\0", "\ud800", "a" * 5000, {"a": 1}, 1.5])
async def test_no_name_is_too_odd_for_a_worker(model: object) -> None:
    assert not uses_own_files({"model_name": model})  # type: ignore[dict-item]  # any JSON
    assert not uses_own_files({})
