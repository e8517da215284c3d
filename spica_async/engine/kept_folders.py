"""A cache of folders: each is written once, and removed when nobody has used it for long."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

DRAFT_PREFIX: Final = "draft-"
"""Of a folder that is still being written."""

_UNUSED_AFTER_SECONDS: Final = 30 * 24 * 3600
# Far longer than writing takes, so the process that wrote it is gone.
_ABANDONED_AFTER_SECONDS: Final = 3600


def write_folder(
    folder: Path, fill: Callable[[Path], None], *, is_whole: Callable[[], bool]
) -> None:
    """Write a folder elsewhere, then rename it: one under its final name is whole.

    Args:
        folder: Its final name. The folder that it stands in is made where it is missing.
        fill: Writes the files into an empty folder.
        is_whole: Whether the folder is there as it should be; then nothing is written.

    Raises:
        OSError: The folder cannot be written, and no other process has written it meanwhile.
    """
    if is_whole():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    discard_unused(folder.parent)
    draft = Path(tempfile.mkdtemp(prefix=DRAFT_PREFIX, dir=folder.parent))
    try:
        new = draft / "new"
        new.mkdir()
        fill(new)
        if folder.exists() and not is_whole():
            with suppress(FileNotFoundError):  # Another process finds it damaged, too.
                folder.rename(draft / "damaged")
        new.rename(folder)
    except OSError:
        if not is_whole():  # Another process, on this host or another, may have been faster.
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def note_use(folder: Path) -> None:
    """The folder's time of modification is that of its last use, give or take some days."""
    if time.time() - folder.stat().st_mtime > _UNUSED_AFTER_SECONDS / 10:
        with suppress(OSError):  # Of a cache that is read-only nobody discards anything either.
            os.utime(folder)


def discard_unused(root: Path) -> None:
    """Remove the folders that were not used for long, and drafts that somebody left behind."""
    now = time.time()
    for entry in root.iterdir():
        is_draft = entry.name.startswith(DRAFT_PREFIX)
        limit = _ABANDONED_AFTER_SECONDS if is_draft else _UNUSED_AFTER_SECONDS
        with suppress(FileNotFoundError):  # Another process does the same.
            if entry.is_dir() and now - entry.stat().st_mtime > limit:
                shutil.rmtree(entry, ignore_errors=True)  # What somebody else owns may stay.
