"""The measurements on silicon that ship with the engine, and what its replays are timed by.

Read without the engine, which takes seconds to import.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import yaml

from spica_async.engine.model_files import core_folder
from spica_async.engine.own_files import SYSTEMS_VARIABLE, own_settings
from spica_async.errors import SpicaError, file_problem

_MEASURED: Final = "silicon_sample.csv"
_VERSIONS: Final = "query_versions.yaml"
_PACKAGES: Final = {"trtllm": "tensorrt-llm"}


def silicon_table() -> str:
    """The text of the table of measured points, CSV with a header.

    Raises:
        SpicaError: this engine brings none.
    """
    path = core_folder() / "systems" / _MEASURED
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpicaError(
            f"this engine brings no measurements on silicon: {path}: {file_problem(error)}"
        ) from None


def timed_version(sku: str, backend: str) -> str:
    """The backend's version whose measured steps time a replay; empty if the engine names none."""
    own = own_settings().get(SYSTEMS_VARIABLE)
    folders = [core_folder() / "systems"]
    if own is not None and (Path(own) / _VERSIONS).is_file():
        folders.insert(0, Path(own))
    versions = _versions(folders[0])
    entry = versions.get("overrides", {}).get(sku, {}).get(backend)
    entry = entry or versions.get("defaults", {}).get(backend)
    return str(entry["current"]) if entry else ""


@cache
def deployed_version(backend: str) -> str:
    """The backend's version that the replayed Dynamo is released with, its images too.

    Empty if it names none.
    """
    package = _PACKAGES.get(backend, backend)
    pin = re.compile(rf"{re.escape(package)}(?:\[[^]]*\])?==([^;\s]+)")
    pins = map(pin.match, metadata.requires("ai-dynamo") or ())
    return next((found[1] for found in pins if found), "")


@cache
def _versions(systems: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((systems / _VERSIONS).read_text(encoding="utf-8"))
    return document
