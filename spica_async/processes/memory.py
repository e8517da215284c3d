"""Keeps a child process from taking the memory of its host."""

from __future__ import annotations

import asyncio
from typing import Final

import psutil

from spica_async.processes.container import available_memory

_LEAST_BYTES: Final = 2 * 2**30
_AVAILABLE_SHARE: Final = 0.9
_COUNTLESS: Final = 10**18
_SAMPLE_SECONDS: Final = 0.5


def child_memory_limit() -> int:
    """The bytes that one child beside others may have resident, by what is available now.

    That is a quarter of it; all but a reserve where a quarter would be too little for any work.
    """
    available = psutil.virtual_memory().available
    room = available_memory()
    share = int(min(available, available if room is None else room) * _AVAILABLE_SHARE)
    return min(share, max(_LEAST_BYTES, share // 4))


async def outgrown(pid: int, limit_bytes: int) -> int:
    """Wait until a process has more than this resident.

    One that ends before never has, and this waits until it is cancelled.

    Returns:
        What it has, in bytes.
    """
    while (resident := _resident(pid)) <= limit_bytes:  # noqa: ASYNC110  # nobody tells of it
        await asyncio.sleep(_SAMPLE_SECONDS)
    return resident


def mebibytes(size: int) -> str:
    """The size for a person to read."""
    return f"{readable(size // 2**20)} MiB"


def readable(number: int) -> str:
    """The number for a person to read, who may have asked for one too long to be written."""
    return f"{number:,}" if number < _COUNTLESS else f"over {_COUNTLESS:,}"


def _resident(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0  # It has ended.
