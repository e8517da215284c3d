"""The end of a child process that speaks over its pipes and leads a group of its own."""

from __future__ import annotations

import os
import signal
from asyncio.subprocess import Process
from contextlib import suppress

from spica_async.unbroken import unbroken


async def end_child(process: Process) -> None:
    """Kill a child and its group at once and reap it, though the caller be cancelled meanwhile."""
    # One that was reaped has no group that is known to be still its own.
    if process.returncode is None:
        with suppress(ProcessLookupError):  # It has just ended by itself.
            os.killpg(process.pid, signal.SIGKILL)
    assert process.stdin is not None  # noqa: S101  # it speaks over its pipes
    process.stdin.close()
    # Reads what is left, so that both pipes close; waiting alone would leave them open.
    await unbroken(process.communicate())
