"""Where children say what nobody reads while all goes well."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import structlog

from spica_async.processes.threads import DaemonThreads

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
        opening = _THREADS.submit(path.open, "ab")
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return cast("BinaryIO", await asyncio.wrap_future(opening))
        except TimeoutError:
            opening.add_done_callback(_close)
            log.warning("child.log_hangs", path=str(path), seconds=_PATIENCE_SECONDS)
        except asyncio.CancelledError:
            opening.add_done_callback(_close)
            raise
    return Path(os.devnull).open("ab")  # noqa: ASYNC230  # no disk is asked


def _close(opening: Future[Any]) -> None:
    """Close what is opened too late for anybody to write to it."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
