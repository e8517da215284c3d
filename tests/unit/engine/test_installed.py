"""The engine as planning asks it: its own failures, and those over a folder of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.messages import Sample
from spica_async.engine import capacity
from spica_async.engine.refusals import ShapeRejectedError
from spica_async.plan import installed
from spica_async.plan.answers import Answers
from spica_async.plan.installed import InstalledEngine


@pytest.fixture
def _failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The capacity model fails over whatever it is asked."""

    def fail(*_: object) -> int:
        raise TypeError("unsupported operand type(s)\nfor //")

    monkeypatch.setattr(capacity, "kv_tokens_per_rank", fail)
    monkeypatch.setattr(installed, "engine_config", lambda sample, _: dict(sample))


@pytest.mark.usefixtures("_failing")
def test_over_a_folder_it_is_a_fact_about_the_shape(tmp_path: Path) -> None:
    engine = InstalledEngine(Answers(), tmp_path)
    sample: Sample = {"model_name": "my/model"}
    with pytest.raises(ShapeRejectedError) as refusal:
        engine.kv_tokens_per_rank(sample, "agg")
    assert refusal.value.reason == (
        "the engine fails over the model's folder: unsupported operand type(s) for //"
    )


@pytest.mark.usefixtures("_failing")
def test_over_a_model_of_its_own_it_is_a_fault() -> None:
    engine = InstalledEngine(Answers())
    with pytest.raises(TypeError):
        engine.kv_tokens_per_rank({"model_name": "Qwen/Qwen3-32B"}, "agg")
