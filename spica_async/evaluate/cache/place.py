"""Where results are kept."""

from __future__ import annotations

from pathlib import Path

from spica_async.places import user_cache_folder
from spica_async.storage.address import ServerAddress, read_address


def user_cache_file() -> Path:
    """The file in the user's cache; may be removed whenever no sweep runs."""
    return user_cache_folder() / "results.sqlite3"


def cache_place(journal: str | Path | None) -> str | Path:
    """Where results belong that are measured for sweeps of a journal.

    A server that keeps the journal keeps them, too, for all who share it. Otherwise they are in
    the user's cache and not beside a journal's file, for they are of use to other journals.

    Args:
        journal: URL or path of the journal; see `read_address`.

    Raises:
        InputError: if that names none.
    """
    if journal is not None and isinstance(read_address(journal, holds="journal"), ServerAddress):
        return journal
    return user_cache_file()
