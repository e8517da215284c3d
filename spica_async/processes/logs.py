"""Where children say what nobody reads while all goes well."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import structlog

from spica_async.processes.threads import DaemonThreads, in_threads

_PATIENCE_SECONDS: Final = 5.0
# Of their own: a disk that hangs may keep them all.
_THREADS: Final = DaemonThreads(4, "logs")

log = structlog.get_logger(__name__)


async def open_log(path: Path | None) -> BinaryIO:
    """A file for a child to append to; one that keeps nothing without a path, or if a disk hangs.

    Raises:
        OSError: it cannot be opened.
    """
    if path is not None:
        opening: Any = partial(path.open, "ab")
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return cast("BinaryIO", await in_threads(_THREADS, opening))
        except TimeoutError:
            log.warning("child.log_hangs", path=str(path), seconds=_PATIENCE_SECONDS)
    return Path(os.devnull).open("ab")  # noqa: ASYNC230  # no disk is asked
