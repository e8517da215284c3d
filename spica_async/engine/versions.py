"""Which engine this is: two workers with one fingerprint answer a request alike."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata
from typing import Final

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


def engine_versions() -> dict[str, str]:
    """Distribution name to version.

    Raises:
        importlib.metadata.PackageNotFoundError: if a part of the engine is not installed.
    """
    return {name: metadata.version(name) for name in _DISTRIBUTIONS}


@cache
def engine_fingerprint() -> str:
    """Twelve hexadecimal digits that change with any part of the engine."""
    text = "\n".join(f"{name}=={version}" for name, version in sorted(engine_versions().items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
