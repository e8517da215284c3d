"""Keeps a child process from taking the memory of its host."""

from __future__ import annotations

from typing import Final

import psutil

from spica_async.processes.container import available_memory

_LEAST_BYTES: Final = 2 * 2**30
_AVAILABLE_SHARE: Final = 0.9
_COUNTLESS: Final = 10**18


def child_memory_limit() -> int:
    """The bytes that one child beside others may have resident, by what is available now.

    That is a quarter of it; all but a reserve where a quarter would be too little for any work.
    """
    available = psutil.virtual_memory().available
    room = available_memory()
    share = int(min(available, available if room is None else room) * _AVAILABLE_SHARE)
    return min(share, max(_LEAST_BYTES, share // 4))


def mebibytes(size: int) -> str:
    """The size for a person to read."""
    return f"{readable(size // 2**20)} MiB"


def readable(number: int) -> str:
    """The number for a person to read, who may have asked for one too long to be written."""
    return f"{number:,}" if number < _COUNTLESS else f"over {_COUNTLESS:,}"
