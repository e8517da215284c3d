"""What we rely on where the engine looks for a model."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

import pytest
from support.engine_samples import agg, request, synthetic

from spica_async.engine import facts
from spica_async.engine.evaluation import evaluate
from spica_async.engine.model_files import (
    FILES,
    core_folder,
    folder_of,
    named_by_content,
    own_model,
    packaged_models,
)

MODEL = "Qwen/Qwen3-32B"
SMALL = synthetic(requests=8)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A shipped model as one of the user's own."""
    folder = tmp_path / "mine"
    folder.mkdir()
    shipped = core_folder() / "model_configs" / "Qwen--Qwen3-32B_config.json"
    shutil.copy(shipped, folder / "config.json")
    return folder


def test_the_shipped_models_are_known_without_the_engine() -> None:
    assert packaged_models() == set(facts.known_models())


def test_the_engine_looks_for_no_other_files() -> None:
    loaders = (core_folder() / "sdk" / "utils.py").read_text()
    named = set(re.findall(r"\b((?:[a-z]+_)*config\.json)\b", loaders))
    assert named == set(FILES)


def test_the_files_of_a_model_are_replayed_as_the_model(mine: Path) -> None:
    plain = request(agg(model_name=MODEL), SMALL)
    files = own_model(str(mine))
    assert files is not None
    here = plain.model_copy(
        update={"model": files, "sample": {**plain.sample, "model_name": str(folder_of(files))}}
    )
    assert evaluate(here).report == evaluate(plain).report


def test_whoever_knows_nothing_of_files_can_only_fail(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = request(agg(model_name=MODEL), SMALL)
    files = own_model(str(mine))
    assert files is not None
    # As a worker of before is told: without the field, and it asked the engine whatever the name.
    named = plain.model_copy(update={"sample": named_by_content(plain.sample, files)})
    monkeypatch.setattr("spica_async.engine.evaluation.packaged_models", _EveryName)
    asked_of_a_network: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **_: asked_of_a_network.append(args))
    measured = evaluate(named)
    assert (measured.outcome, measured.report) == ("failed", None)
    assert f"files with SHA-256 {files.sha256}" in str(measured.detail)
    assert asked_of_a_network == []


class _EveryName:
    def __contains__(self, name: str) -> bool:
        return True


@pytest.mark.parametrize("name", ["/models/mine", "mine", "files with SHA-256 0"])
def test_a_name_alone_is_no_model_of_the_users(name: str) -> None:
    measured = evaluate(request(agg(model_name=name), SMALL))
    assert (measured.outcome, measured.cause) == ("failed", "model_unavailable")
    assert name in str(measured.detail)
