"""Traces of any bytes, as a request names them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from schemas.messages import TraceLoad, TraceSource
from spica_async.traces.sources import DEFAULT_SCHEMES
from workers.traces import TraceCache

NOWHERE = "/nowhere/trace.jsonl"


def load_of(
    content: bytes, *, path: Path | str = NOWHERE, sources: Sequence[TraceSource | str] = ()
) -> TraceLoad:
    """A load whose trace has this content; its requests are of no interest."""
    return TraceLoad(
        path=str(path),
        sources=[TraceSource(url=item) if isinstance(item, str) else item for item in sources],
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        requests=1,
        total_tokens=1,
    )


def open_cache(folder: Path, **settings: Any) -> TraceCache:
    """A cache that does not pause between attempts, and fetches from memory, too."""
    settings.setdefault("schemes", (*DEFAULT_SCHEMES, "memory"))
    return TraceCache(folder, pause_seconds=0, **settings)


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
