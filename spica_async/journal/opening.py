"""The journal that a command keeps its sweeps in."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from schemas.config import SmartSearchConfig
from schemas.workload import WINDOW
from spica_async.journal.port import Journal, SweepRow
from spica_async.places import check_file
from spica_async.processes.threads import with_files
from spica_async.storage.address import FileAddress, ServerAddress, read_address
from spica_async.storage.errors import StorageDamagedError

FILE_NAME: Final = "journal.sqlite3"


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Where the journal is.

    Attributes:
        where: a URL, or the path of a file.
    """

    where: str | Path

    @classmethod
    def read(cls, url: str | None, output: Path) -> JournalOptions:
        """The journal of a URL, or else the one beside the sweeps' folders.

        Raises:
            InputError: the URL names no journal, or a file that cannot be written.
        """
        where = url or output / FILE_NAME
        address = read_address(where, holds="journal")
        if isinstance(address, FileAddress):
            check_file(f"journal {address}", address.path)
        return cls(where)

    @property
    def name(self) -> str:
        """For people to read: without a password."""
        return str(read_address(self.where))

    @property
    def exists(self) -> bool:
        """Whether there is one, as far as that is known without asking for it."""
        address = read_address(self.where)
        return isinstance(address, ServerAddress) or address.path.exists()

    @property
    def is_server(self) -> bool:
        """Whether it is somewhere that may not answer."""
        return isinstance(read_address(self.where), ServerAddress)


async def load_library() -> None:
    """Load what opening a journal needs, which takes a while, in a thread beside the loop."""
    await with_files(importlib.import_module, "spica_async.journal.sql")


@asynccontextmanager
async def opened(options: JournalOptions) -> AsyncIterator[Journal]:
    """The journal, with its tables made or brought up to date.

    Raises:
        StorageError: it cannot be opened.
    """
    from spica_async.journal.sql import SqlJournal  # noqa: PLC0415  # loads SQLAlchemy

    async with SqlJournal.open(options.where) as journal:
        yield journal


def config_of(row: SweepRow) -> SmartSearchConfig:
    """The configuration of a sweep in the journal.

    Raises:
        StorageDamagedError: it cannot be read.
    """
    try:
        # What an older version has begun is measured as that has measured it.
        return SmartSearchConfig.model_validate_json(row.config, context={WINDOW: "whole"})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise StorageDamagedError(
            f"sweep {row.sweep_id}: its configuration cannot be read: {where}: {first['msg']}"
        ) from error
