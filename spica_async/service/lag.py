"""Whether the event loop comes to its work in time, on which leases and heartbeats depend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import structlog

LATE_SECONDS: Final = 0.25
"""By so much no step of the loop should hold up the others; a lease lasts half a minute."""

_INTERVAL_SECONDS: Final = 0.1

log = structlog.get_logger(__name__)


@asynccontextmanager
async def watched_loop(observe: Callable[[float], object]) -> AsyncIterator[None]:
    """Measure the loop's lag while the context is open.

    Args:
        observe: takes it, in seconds, ten times a second.
    """
    watching = asyncio.create_task(_watch(observe))
    try:
        yield
    finally:
        watching.cancel()


async def _watch(observe: Callable[[float], object]) -> None:
    time = asyncio.get_running_loop().time
    while True:
        due = time() + _INTERVAL_SECONDS
        await asyncio.sleep(_INTERVAL_SECONDS)
        lag = max(0.0, time() - due)
        observe(lag)
        if lag > LATE_SECONDS:
            log.warning("daemon.loop_late", seconds=round(lag, 3))
