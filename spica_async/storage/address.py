"""Where a database is: a file of SQLite's, or a database of PostgreSQL's."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, unquote_to_bytes, urlsplit

from spica_async.errors import InputError

_SQLITE: Final = "sqlite:///"
_POSTGRES: Final = ("postgresql://", "postgres://")
TLS_FILES: Final = ("sslrootcert", "sslcert", "sslkey")
"""What names a file in the query of a server's URL."""


@dataclass(frozen=True, slots=True)
class FileAddress:
    """A file of SQLite's."""

    path: Path

    def __str__(self) -> str:
        # A name that is no text would break whatever prints it.
        return os.fsencode(self.path).decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A database of PostgreSQL's.

    Attributes:
        url: As PostgreSQL's own clients read it, with the password.
        name: The same for people: without the password.
    """

    url: str
    name: str

    @property
    def files(self) -> dict[str, Path]:
        """The files that the URL names, by `TLS_FILES`."""
        query = dict(parse_qsl(urlsplit(self.url).query))
        return {option: Path(query[option]) for option in TLS_FILES if option in query}

    @property
    def has_several_hosts(self) -> bool:
        """Whether one of several servers is meant, whichever serves."""
        return "," in urlsplit(self.url).netloc.rpartition("@")[2]

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"ServerAddress({self.name!r})"


Identity = tuple[int, int]
"""Of a file, whatever its name: its device and its number there."""


def identity(path: Path) -> Identity | None:
    """Which file has a name; None if none has."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def sqlite_url(path: Path) -> str:
    """The URL of a file of SQLite's, whatever characters its name has."""
    return _SQLITE + quote(os.fsencode(path.absolute()))


def read_address(where: str | Path, *, holds: str = "database") -> FileAddress | ServerAddress:
    """Read the address of a database.

    Args:
        where: A file's path; or `sqlite:///PATH`, the path percent-encoded as in any URL; or
            `postgresql://USER:PASSWORD@HOST:PORT/NAME`, with whatever libpq takes behind a `?`.
        holds: What is kept there, for the message of an error.

    Raises:
        InputError: if it is none of them. The message never shows a password.
    """
    try:
        return _read_address(where)
    except ValueError as error:
        raise InputError(f"{holds}: {error}") from None


def _read_address(where: str | Path) -> FileAddress | ServerAddress:
    if isinstance(where, Path):
        return _file(where.absolute())
    if where.startswith(_SQLITE):
        rest = where.removeprefix(_SQLITE)
        if re.search("[?#]", rest):
            raise ValueError("in the path of a sqlite:///PATH write ? as %3F and # as %23")
        if not rest:
            raise ValueError("sqlite:///PATH wants the path of a file")
        return _file(Path(os.fsdecode(unquote_to_bytes(os.fsencode(rest)))).absolute())
    if where.startswith(_POSTGRES):
        return ServerAddress(where, _without_secrets(where))
    raise ValueError("give sqlite:///PATH or postgresql://USER:PASSWORD@HOST:PORT/NAME")


def _file(path: Path) -> FileAddress:
    if "\0" in str(path):
        raise ValueError("no file has a zero byte in its name")
    return FileAddress(path)


def _without_secrets(url: str) -> str:
    # Were a password to hold one of these as it is, part of it would be taken for a host's name,
    # and be shown as that.
    credentials, _, _ = url.partition("://")[2].rpartition("@")
    if re.search(r"[@/?#\s]", credentials):
        raise ValueError(
            "in the user's name, the password and the options of a postgresql:// write "
            "@ as %40, / as %2F, ? as %3F and # as %23"
        )
    try:
        parts = urlsplit(url)
        user = f"{parts.username}@" if parts.username else ""
        # Not the host's name alone: there may be several hosts, or none.
        hosts = parts.netloc.rpartition("@")[2]
    except ValueError:
        raise ValueError("this postgresql:// cannot be read as a URL") from None
    return f"postgresql://{user}{hosts}{parts.path}"
