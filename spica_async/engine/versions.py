"""Which engine this is: two workers with one fingerprint answer a request alike."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata
from typing import Final

from spica_async.engine.own_files import own_files

# All that shapes a report: the replay, the performance data, the planner's predictors.
_DISTRIBUTIONS: Final = (
    "ai-dynamo",
    "ai-dynamo-runtime",
    "aisimulate",
    "filterpy",
    "pmdarima",
    "prophet",
    "scikit-learn",
)

OWN_DATA: Final = "own performance data"
"""Stands among the versions for what `AICONFIGURATOR_*` names: its digest is its version."""


def engine_versions() -> dict[str, str]:
    """Distribution name to version, and what of the user's own stands beside them.

    Raises:
        importlib.metadata.PackageNotFoundError: if a part of the engine is not installed.
        InputError: if a file of the user's own cannot be read.
    """
    versions = {name: metadata.version(name) for name in _DISTRIBUTIONS}
    own = own_files()
    return versions if own is None else {**versions, OWN_DATA: own.digest}


@cache
def engine_fingerprint() -> str:
    """Twelve hexadecimal digits that change with any part of the engine."""
    text = "\n".join(f"{name}=={version}" for name, version in sorted(engine_versions().items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
