"""The cache's file among processes that open it, and that set it aside."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from spica_async.errors import file_problem
from spica_async.storage.address import Identity, identity
from spica_async.storage.errors import StorageBusyError, StorageError

_RETRY_SECONDS: Final = 0.02


@asynccontextmanager
async def alone(path: Path, seconds: float) -> AsyncIterator[None]:
    """Be the only process of this host to open the file or to set it aside.

    While one takes the file and what SQLite has beside it away, another would open one half of it.

    Args:
        path: Of the file.
        seconds: How long to wait for others.

    Raises:
        StorageBusyError: if they take longer.
        StorageError: if nothing can be written there.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    descriptor = _open_lock(path)
    try:
        while not _has_locked(descriptor):
            if clock() > until:
                raise StorageBusyError(f"result cache {path}: others take too long to open it")
            await asyncio.sleep(_RETRY_SECONDS)
        yield
    finally:
        os.close(descriptor)


async def set_aside(path: Path, which: Identity | None, seconds: float) -> None:
    """Let the next who opens the file begin a new one; the old one is kept beside it.

    Args:
        path: Of the file.
        which: The file that is meant: another process may have set it aside before us.
        seconds: How long to wait for others.

    Raises:
        StorageError: if it cannot be done.
    """
    async with alone(path, seconds):
        if identity(path) == which:
            _rename(path)


def _rename(path: Path) -> None:
    try:
        path.replace(path.with_name(f"{path.name}.damaged"))
        for ending in ("-wal", "-shm"):
            # SQLite would take them for the new file's.
            with suppress(FileNotFoundError):
                path.with_name(path.name + ending).unlink()
    except OSError as error:
        raise StorageError(f"result cache {path}: {file_problem(error)}") from error


def _open_lock(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StorageError(f"result cache {path}: {file_problem(error)}") from error


def _has_locked(descriptor: int) -> bool:
    try:
        # The kernel lets go of it should we die.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
