"""Writes the JSON Schemas of what programs exchange.

Run it as `python -m schemas.generate`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from schemas.config import SmartSearchConfig
from schemas.control import RollCalled, SweepCancelled
from schemas.daemon import SweepCommandAnswered, SweepCommanded
from schemas.events import EvaluationStarted, WorkerHeartbeat, WorkerJoined, WorkerLeft
from schemas.lifecycle import SweepEvent
from schemas.messages import EvaluationCompleted, EvaluationRequested
from schemas.results import CandidateRecord, SweepResult

FOLDER: Final = Path(__file__).parent / "json"
PUBLISHED: Final[tuple[type[BaseModel], ...]] = (
    SmartSearchConfig,
    EvaluationRequested,
    EvaluationCompleted,
    EvaluationStarted,
    WorkerHeartbeat,
    WorkerJoined,
    WorkerLeft,
    RollCalled,
    SweepCancelled,
    SweepEvent,
    SweepCommanded,
    SweepCommandAnswered,
    CandidateRecord,
    SweepResult,
)


def schema_text(model: type[BaseModel]) -> str:
    """The JSON Schema of a model, as the text of its file."""
    return json.dumps(model.model_json_schema(), indent=2, sort_keys=True) + "\n"


def schema_path(model: type[BaseModel]) -> Path:
    """The file that holds the JSON Schema of a model."""
    return FOLDER / f"{model.__name__}.json"


def main() -> None:
    """Write every published schema."""
    FOLDER.mkdir(exist_ok=True)
    for model in PUBLISHED:
        schema_path(model).write_text(schema_text(model), encoding="utf-8")


if __name__ == "__main__":
    main()
