"""Work that a cancellation must not leave half done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def shielded(
    work: Coroutine[Any, Any, ResultT],
    *,
    can_be_cut: bool = False,
    patience_seconds: float | None = None,
) -> ResultT:
    """Do something whole, though the caller be cancelled: it hears of that when all is done.

    Args:
        work: what to do. If it fails after the cancellation, nobody hears of that.
        can_be_cut: whether a second cancellation reaches the work, too.
        patience_seconds: how long it may go on after the cancellation, which then reaches it, too;
            none: its time is bounded anyway.
    """
    task = asyncio.ensure_future(work)
    # So that the loop does not complain of an error that nobody waits for any more.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait([task], timeout=patience_seconds)
                if patience_seconds is not None:
                    task.cancel()
            except asyncio.CancelledError:
                if can_be_cut:
                    task.cancel()
        raise
