"""What this process and its children have used."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import psutil

_MB = 10**6
_LOOK_SECONDS = 1.0
_IDLE_SECONDS = 0.03
"""CPU time between two looks that is no work."""


def cpu_seconds() -> float:
    """CPU time of this process, its children, and those of them that have ended."""
    seconds = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # It has just ended.
            times = child.cpu_times()
            seconds += times.user + times.system
    return seconds


async def until_idle() -> None:
    """Wait until the children do nothing, as while replays run: so they can prepare themselves."""
    before, now = 0.0, cpu_seconds()
    while now - before > _IDLE_SECONDS:
        await asyncio.sleep(_LOOK_SECONDS)
        before, now = now, cpu_seconds()


def memory_of_children() -> tuple[float, float]:
    """The resident memory of all children, now and at their highest, in 10**6 bytes."""
    now = highest = 0.0
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(FileNotFoundError):  # It has just ended.
            status = Path(f"/proc/{child.pid}/status").read_text()
            fields = dict(line.split(":", 1) for line in status.splitlines())
            now += _megabytes(fields.get("VmRSS"))
            highest += _megabytes(fields.get("VmHWM"))
    return now, highest


def _megabytes(field: str | None) -> float:
    """The number of a field; one that waits to be reaped has none."""
    if field is None:
        return 0.0
    kibibytes, unit = field.split()
    assert unit == "kB"
    return int(kibibytes) * 1024 / _MB
