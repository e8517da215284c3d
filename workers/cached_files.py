"""The files of a trace cache, which workers of one host may share.

To use one takes a shared lock on it, and to evict one an exclusive lock. Locks
never wait, and the kernel drops those of a worker that was killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from pathlib import Path
from typing import Final

DRAFT_SUFFIX: Final = ".part"
"""Of what is still being written."""
_CACHED: Final = re.compile(r"[0-9a-f]{64}\.jsonl")
# Far longer than a download may take, so its writer is gone.
_ABANDONED_AFTER_SECONDS: Final = 3600

Identity = tuple[int, int, int, int]


def cached_path(folder: Path, sha256: str) -> Path:
    """Where a trace lies in the folder, once it is there."""
    return folder / f"{sha256}.jsonl"


def identity(status: os.stat_result) -> Identity:
    """What changes when a file is replaced or written to."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def sha256(path: Path) -> str:
    """The digest of what the file holds."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hold(path: Path) -> int | None:
    """Keep a file from being evicted until the returned descriptor is closed.

    Returns:
        None if the file is not there, or about to be evicted.
    """
    return _lock(path, fcntl.LOCK_SH)


def keep(draft: int, name: str, path: Path) -> bool:
    """Give a draft, open and whole, its place in the folder; no one evicts it while it is open.

    Returns:
        False if another worker has put a file there by now, which is left alone.
    """
    fcntl.flock(draft, fcntl.LOCK_SH)
    try:
        os.link(name, path)  # A rename would replace a file that another worker uses.
    except FileExistsError:
        return False
    return True


def touch(descriptor: int) -> None:
    """Note a use where `evict` looks for it; the time of modification stands for the content."""
    os.utime(descriptor, ns=(time.time_ns(), os.fstat(descriptor).st_mtime_ns))


def evict(folder: Path, max_bytes: int) -> None:
    """Remove what was not used for longest, save what is in use, until the rest is in the bound."""
    found: list[tuple[int, int, Path]] = []
    for path in folder.iterdir():
        if _CACHED.fullmatch(path.name):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue  # Another worker was faster.
            found.append((status.st_atime_ns, status.st_size, path))
    total = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if total <= max_bytes:
            return
        held = _lock(path, fcntl.LOCK_EX)
        if held is not None:
            try:
                path.unlink(missing_ok=True)
            finally:
                os.close(held)
        if not path.exists():  # Another worker may have removed it.
            total -= size


def remove_abandoned(folder: Path) -> None:
    """Remove the drafts that killed workers left."""
    now = time.time()
    for draft in folder.glob(f"*{DRAFT_SUFFIX}"):
        try:
            if now - draft.stat().st_mtime > _ABANDONED_AFTER_SECONDS:
                draft.unlink()
        except FileNotFoundError:
            continue  # Another worker does the same.


def _lock(path: Path, operation: int) -> int | None:
    """Open and lock the file; None if it is not there, going, or locked against us."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        # Between opening and locking it may have been evicted, and even fetched again.
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
