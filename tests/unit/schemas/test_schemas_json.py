"""The published JSON Schemas say what the models say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from schemas import generate
from schemas.config import SmartSearchConfig
from schemas.messages import EvaluationCompleted, EvaluationRequested
from schemas.presets import FPM_SAMPLINGS
from schemas.search_space import SEARCH_CHOICES


@pytest.mark.parametrize("model", generate.PUBLISHED, ids=lambda model: model.__name__)
def test_the_published_schema_is_that_of_the_model(model: type[BaseModel]) -> None:
    path = generate.schema_path(model)
    assert path.read_text(encoding="utf-8") == generate.schema_text(model), (
        "run python -m schemas.generate"
    )


def test_nothing_else_is_published() -> None:
    expected = {generate.schema_path(model) for model in generate.PUBLISHED}
    assert set(generate.FOLDER.iterdir()) == expected


def test_generating_writes_every_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "FOLDER", tmp_path / "json")
    generate.main()
    written = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "json").iterdir()}
    assert {name: schema["title"] for name, schema in written.items()} == {
        name: name
        for name in (
            *(
                "SmartSearchConfig",
                "EvaluationRequested",
                "EvaluationCompleted",
                "EvaluationStarted",
                "WorkerJoined",
                "SweepEvent",
                "SweepCommanded",
                "SweepCommandAnswered",
            ),
            *("WorkerHeartbeat", "WorkerLeft", "RollCalled", "SweepCancelled"),
            *("CandidateRecord", "SweepResult"),
        )
    }


def test_the_schema_of_a_configuration_names_the_choices_and_refuses_other_keys() -> None:
    schema = json.loads(generate.schema_text(SmartSearchConfig))
    space: dict[str, Any] = schema["$defs"]["SearchSpace"]
    assert space["additionalProperties"] is False
    assert space["required"] == ["model_name", "hardware_sku"]
    for knob, choices in SEARCH_CHOICES.items():
        assert set(space["properties"][knob]["items"]["enum"]) == set(choices)
    preset, mapping = space["properties"]["planner_fpm_sampling"]["items"]["anyOf"]
    assert preset == {"enum": list(FPM_SAMPLINGS)}
    assert mapping["required"] == ["max_num_fpm_samples", "fpm_sample_bucket_size"]


def test_the_schemas_of_messages_name_their_types() -> None:
    types: dict[type[BaseModel], str] = {
        EvaluationRequested: "spica.evaluation.requested.v1",
        EvaluationCompleted: "spica.evaluation.completed.v1",
    }
    for model, message in types.items():
        schema = json.loads(generate.schema_text(model))
        assert schema["properties"]["type"]["const"] == message
        # Later versions of the producer may add fields.
        assert "additionalProperties" not in schema
