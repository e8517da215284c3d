"""A task that lives as long as a context."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

_AGAIN_SECONDS = 1.0


@asynccontextmanager
async def in_background(coroutine: Coroutine[Any, Any, None], *, name: str) -> AsyncIterator[None]:
    """Run a coroutine beside the context, and cancel it in the end, whatever became of it."""
    task = asyncio.create_task(coroutine, name=name)
    try:
        yield
    finally:
        # More than once: `asyncio.wait_for` in Python 3.11, which the client library uses, drops
        # a cancellation that meets the end of what it waits for.
        while not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=_AGAIN_SECONDS)
