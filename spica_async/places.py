"""Whether something can be written where somebody said, asked before any work and made nowhere."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from spica_async.errors import InputError, file_problem


def check_folder(what: str, path: Path) -> None:
    """See that a folder can be made, or be written into where there is one.

    Args:
        what: names the path in the message.
        path: of the folder.

    Raises:
        InputError: it cannot.
    """
    try:
        for folder in (path, *path.absolute().parents):
            try:
                mode = folder.stat().st_mode
            except FileNotFoundError:
                continue
            _check(folder, is_folder=stat.S_ISDIR(mode))
            return
    except OSError as error:
        raise InputError(f"{what}: {file_problem(error)}") from None


def check_file(what: str, path: Path) -> None:
    """See that a file can be made, or be written to where there is one; otherwise as above."""
    try:
        if path.is_dir():
            raise IsADirectoryError(None, "is a directory")
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            raise PermissionError(None, "permission denied")
    except OSError as error:
        raise InputError(f"{what}: {file_problem(error)}") from None
    check_folder(what, path.parent)


def _check(folder: Path, *, is_folder: bool) -> None:
    if not is_folder:
        raise NotADirectoryError(None, "not a directory")
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        raise PermissionError(None, "read-only file system")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(None, "permission denied")
