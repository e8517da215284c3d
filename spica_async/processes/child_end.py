"""The end of a child process that speaks over its pipes and leads a group of its own."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from contextlib import suppress
from typing import Final

import structlog

from spica_async.processes.shielded import shielded

_REAP_SECONDS: Final = 10.0
"""A process that is killed ends at once, unless it waits for a disk that hangs."""

log = structlog.get_logger(__name__)


async def end_child(process: Process) -> None:
    """Kill a child and its group at once and reap it, though the caller be cancelled meanwhile.

    One that does not end even so is left behind.
    """
    # One that was reaped has no group that is known to be still its own.
    if process.returncode is None:
        with suppress(ProcessLookupError):  # It has just ended by itself.
            os.killpg(process.pid, signal.SIGKILL)
    assert process.stdin is not None  # noqa: S101  # it speaks over its pipes
    process.stdin.close()
    await shielded(_reap(process))


async def _reap(process: Process) -> None:
    try:
        async with asyncio.timeout(_REAP_SECONDS):
            # Reads what is left, so that both pipes close; waiting alone would leave them open.
            await process.communicate()
    except TimeoutError:
        log.warning("child.does_not_end", pid=process.pid, seconds=_REAP_SECONDS)
