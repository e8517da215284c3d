"""A cache of folders: each is written once, and removed when nobody has used it for long."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

DRAFT_PREFIX: Final = "draft-"
"""Of a folder that is still being written."""

_UNUSED_AFTER_SECONDS: Final = 30 * 24 * 3600
# Far longer than writing takes, so the process that wrote it is gone.
_ABANDONED_AFTER_SECONDS: Final = 3600


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
