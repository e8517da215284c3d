"""Accuracies that are known without a replay: those of this user's runs, and those shipped.

Each is known of one engine, by its fingerprint, and of one way of replaying. What another engine
has come to is not read.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from schemas.accuracy import CellAccuracy
from schemas.base import MessageModel
from spica_async.accuracy.cells import key_of
from spica_async.accuracy.points import CellKey
from spica_async.accuracy.replays import SETTINGS
from spica_async.errors import SpicaError, file_problem
from spica_async.places import user_state_folder

SHIPPED: Final = "shipped.json"


class AccuracyTable(MessageModel):
    """Accuracies of cells by one engine."""

    fingerprint: str
    settings: str = Field(default=SETTINGS, description="stands for the way of replaying")
    cells: list[CellAccuracy]


def keep(cells: Iterable[CellAccuracy], fingerprint: str) -> None:
    """Keep accuracies for later sweeps, each in the place of what was kept of its cell.

    Raises:
        SpicaError: they cannot be written.
    """
    folder = _folder(fingerprint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for cell in cells:
            table = AccuracyTable(fingerprint=fingerprint, cells=[cell])
            _replace(folder / _file_name(key_of(cell)), table.model_dump_json(indent=2))
    except OSError as error:
        raise SpicaError(f"the accuracy cannot be kept: {folder}: {file_problem(error)}") from None


def known_cells(fingerprint: str) -> list[CellAccuracy]:
    """The accuracies known of an engine, in the order of their cells.

    What this user's runs have come to goes before what is shipped, unless that is of more points.
    """
    cells = {key_of(cell): cell for cell in shipped_cells(fingerprint)}
    for cell in kept_cells(fingerprint):
        key = key_of(cell)
        if key not in cells or cell.points >= cells[key].points:
            cells[key] = cell
    return [cells[key] for key in sorted(cells)]


def shipped_cells(fingerprint: str) -> list[CellAccuracy]:
    """What ships with the package, if it is of this engine."""
    try:
        text = resources.files(__package__).joinpath(SHIPPED).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return _cells(text, fingerprint)


def kept_cells(fingerprint: str) -> list[CellAccuracy]:
    """What this user's runs have come to; a file that cannot be read is passed over."""
    found = []
    for path in sorted(_folder(fingerprint).glob("*.json")):
        with suppress(OSError, UnicodeError):
            found += _cells(path.read_text(encoding="utf-8"), fingerprint)
    return found


def table_text(cells: Iterable[CellAccuracy], fingerprint: str) -> str:
    """The text of the file that is shipped."""
    ordered = sorted(cells, key=key_of)
    table = AccuracyTable(fingerprint=fingerprint, cells=ordered)
    return json.dumps(table.model_dump(mode="json"), indent=1) + "\n"


def _cells(text: str, fingerprint: str) -> list[CellAccuracy]:
    try:
        table = AccuracyTable.model_validate_json(text)
    except ValidationError:
        return []
    is_ours = table.fingerprint == fingerprint and table.settings == SETTINGS
    return table.cells if is_ours else []


def _folder(fingerprint: str) -> Path:
    return user_state_folder() / "accuracy" / fingerprint


def _file_name(key: CellKey) -> str:
    return "--".join(key).replace("/", "--") + ".json"


def _replace(path: Path, text: str) -> None:
    """Write elsewhere, then rename: a reader sees the old text or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")
    draft = Path(name)
    try:
        with open(handle, "w", encoding="utf-8") as file:  # noqa: PTH123  # it is open already
            file.write(text)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
