"""Keeps a child process from taking the memory of its host."""

from __future__ import annotations

from typing import Final

import psutil

from spica_async.processes import container

_LEAST_BYTES: Final = 2 * 2**30
_AVAILABLE_SHARE: Final = 0.9
"""The rest is for ourselves and for what the system takes in the meantime."""
_COUNTLESS: Final = 10**18


def free_memory() -> int:
    """The bytes that our children may share, by what the host and its containers have now."""
    available = psutil.virtual_memory().available
    in_container = container.available_memory()
    return int(
        min(available, available if in_container is None else in_container) * _AVAILABLE_SHARE
    )


def child_memory_limit() -> int:
    """The bytes that one child beside others may have resident, by what is available now.

    That is a quarter of it; all but a reserve where a quarter would be too little for any work.
    """
    share = free_memory()
    return min(share, max(_LEAST_BYTES, share // 4))


def mebibytes(size: int) -> str:
    """The size for a person to read."""
    return f"{readable(size // 2**20)} MiB"


def readable(number: int) -> str:
    """The number for a person to read, who may have asked for one too long to be written."""
    return f"{number:,}" if number < _COUNTLESS else f"over {_COUNTLESS:,}"
