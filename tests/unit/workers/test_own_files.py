"""What a worker measures with files of its own is marked, for others would measure otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.worker_desk import open_desk

from spica_async.engine.own_files import depends_on_own_files

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


@pytest.mark.parametrize("model", ["", "\0", "\ud800", "a" * 5000])
async def test_no_name_is_too_odd(model: str) -> None:
    assert not depends_on_own_files(model)
