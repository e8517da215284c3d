"""Where files go: the user's cache, and whether those that were named can be written."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import platformdirs

from spica_async.errors import InputError, file_problem


def user_cache_folder() -> Path:
    """The user's folder for what may be removed whenever nothing runs; writing makes it.

    A user of whom no home is known, as in many a container, has one among the temporary files.
    """
    with suppress(RuntimeError):
        return platformdirs.user_cache_path("spica-async")
    return _temporary_folder()


def user_state_folder() -> Path:
    """The user's folder for what was worked out and is kept; writing makes it.

    A user of whom no home is known has none that stays.
    """
    with suppress(RuntimeError):
        return platformdirs.user_state_path("spica-async")
    return _temporary_folder() / "state"


def _temporary_folder() -> Path:
    shared = Path(tempfile.gettempdir()) / f"spica-async-{os.getuid()}"
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
        found = shared.lstat()
    except OSError:
        return shared
    # Programs are kept there: no folder of somebody else's making, nor one that others may fill.
    is_ours = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return shared if is_ours and stat.S_ISDIR(found.st_mode) else process_folder()


@cache
def process_folder() -> Path:
    """A temporary folder of this process, which is removed when it ends."""
    folder = Path(tempfile.mkdtemp(prefix="spica-async-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def make_folder(what: str, path: Path) -> Path:
    """Make a folder, unless there is one; returns its path.

    Args:
        what: names the path in the message.
        path: the path of the folder.

    Raises:
        InputError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{what}: {file_problem(error)}") from None
    return path


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
