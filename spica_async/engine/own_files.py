"""What of the user's own has a say in the engine's answers: settings, performance data, models.

Variables of the environment set it. Two processes with one engine answer alike if they have the
same digest of it, wherever the files lie.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from spica_async.engine.model_files import core_folder
from spica_async.errors import InputError, file_problem

SYSTEMS_VARIABLE: Final = "AICONFIGURATOR_SYSTEMS_PATH"
# Variables that name a folder, and the engine's own in its place.
_FOLDERS: Final = {
    SYSTEMS_VARIABLE: "systems",
    "AICONFIGURATOR_MODEL_CONFIGS_PATH": "model_configs",
}
_PREFIXES: Final = ("AICONFIGURATOR_", "AIC_")
_WITHOUT_A_SAY: Final = frozenset({"AICONFIGURATOR_LOG_LEVEL"})


@dataclass(frozen=True, slots=True)
class OwnFiles:
    """What the user has set, as it was when it was read.

    Attributes:
        digest: Of the settings and of what all files hold, as twelve hexadecimal digits.
        stamp: Of the files' sizes and times.
    """

    digest: str
    stamp: str


def own_settings() -> dict[str, str]:
    """The variables that have a say, with absolute paths for children that run elsewhere.

    One that names the engine's own folder is none: the engine itself sets it, once it is loaded.
    """
    settings = {}
    for name, value in os.environ.items():
        if not name.startswith(_PREFIXES) or name in _WITHOUT_A_SAY:
            continue
        if name in _FOLDERS and value.lower() != "default":
            folder = Path(os.path.abspath(os.path.expanduser(value)))  # noqa: PTH100, PTH111  # whatever it holds
            if folder != core_folder() / _FOLDERS[name]:
                settings[name] = str(folder)
        else:
            settings[name] = value
    return settings


@cache
def own_files() -> OwnFiles | None:
    """What the user has set, read at the first call; None without anything.

    Raises:
        InputError: a file cannot be read.
    """
    settings = own_settings()
    if not settings:
        return None
    digest = hashlib.sha256()
    try:
        stamp = _stamp(settings)  # First: what changes while it is read has changed.
        for name, value in sorted(settings.items()):
            files = list(_files(value)) if name in _FOLDERS else []
            # Where a folder lies says nothing of what is in it.
            _add(digest, name, "" if files else value)
            for shown, path in files:
                with Path(path).open("rb") as file:
                    _add(digest, shown, hashlib.file_digest(file, "sha256").hexdigest())
    except OSError as error:
        names = ", ".join(sorted(settings.keys() & _FOLDERS.keys()))
        raise InputError(f"{names}: {error.filename}: {file_problem(error)}") from None
    return OwnFiles(digest.hexdigest()[:12], stamp)


def own_files_have_changed() -> bool:
    """Whether the files are others than those that `own_files` has read; a look at each file."""
    read = own_files()
    if read is None:
        return False
    try:
        return _stamp(own_settings()) != read.stamp
    except OSError:
        return True


def _stamp(settings: dict[str, str]) -> str:
    digest = hashlib.sha256()
    for name in sorted(settings.keys() & _FOLDERS.keys()):
        for shown, path in _files(settings[name]):
            status = os.stat(path)  # noqa: PTH116  # thousands of files, after each evaluation
            _add(digest, shown, f"{status.st_ino} {status.st_size} {status.st_mtime_ns}")
    return digest.hexdigest()


def _files(folder: str) -> Iterator[tuple[str, str]]:
    """All files below a folder, by their paths from there, in order; none where there is none."""
    seen = set()
    if not Path(folder).is_dir():
        return
    for root, folders, names in os.walk(folder, onerror=_raise, followlinks=True):
        here = os.path.realpath(root)
        if here in seen:  # A link to where it came from.
            folders.clear()
            continue
        seen.add(here)
        folders.sort()
        for name in sorted(names):
            path = f"{root}/{name}"
            if os.path.isfile(path):  # noqa: PTH113  # as above
                yield path.removeprefix(folder), path


def _raise(error: OSError) -> None:
    raise error


def _add(digest: hashlib._Hash, name: str, value: str) -> None:
    """Add a pair that no other pair looks like."""
    for text in (name, value):
        content = os.fsencode(text)
        digest.update(f"{len(content)} ".encode() + content)
