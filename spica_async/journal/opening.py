"""The journal that a command keeps its sweeps in."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from schemas.config import SmartSearchConfig
from spica_async.journal import (
    Journal,
    JournalDamagedError,
    Lease,
    NewSweep,
    SweepRow,
    SweepTakenError,
)
from spica_async.journal.owner import is_dead, this_owner
from spica_async.places import check_file
from spica_async.report.folder import config_document
from spica_async.search.events.pending import listed, submitted_event
from spica_async.search.fact_log import LEASE_SECONDS
from spica_async.storage.address import FileAddress, ServerAddress, read_address

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
        address = read_address(where)
        if isinstance(address, FileAddress):
            check_file(f"journal {address}", address.path)
        return cls(where)

    @property
    def name(self) -> str:
        """For people to read: without a password."""
        return str(read_address(self.where))

    @property
    def exists(self) -> bool:
        """Whether there is one, as far as that can be told without asking for it."""
        address = read_address(self.where)
        return isinstance(address, ServerAddress) or address.path.exists()

    @property
    def is_server(self) -> bool:
        """Whether it is somewhere that may not answer."""
        return isinstance(read_address(self.where), ServerAddress)


async def prepare() -> None:
    """Load what takes a while to load, beside something else that is waited for."""
    await asyncio.to_thread(importlib.import_module, "spica_async.journal.sql")


@asynccontextmanager
async def opened(options: JournalOptions) -> AsyncIterator[Journal]:
    """The journal, with its tables made or brought up to date.

    Raises:
        JournalError: it cannot be opened.
    """
    from spica_async.journal.sql import SqlJournal  # noqa: PLC0415  # heavy: see `prepare`

    async with SqlJournal.open(options.where) as journal:
        yield journal


def new_lease() -> Lease:
    """A lease for this process."""
    return Lease(this_owner(), LEASE_SECONDS)


def new_sweep(
    sweep_id: str,
    config: SmartSearchConfig,
    folder: Path,
    *,
    priority: int = 0,
    managed: bool = False,
    use_cache: bool = True,
) -> NewSweep:
    """A sweep to be entered; see `NewSweep`."""
    return NewSweep(
        sweep_id=sweep_id,
        folder=str(folder),
        config=json.dumps(config_document(config)),
        priority=priority,
        managed=managed,
        use_cache=use_cache,
        summary=listed(config).model_dump_json(exclude_none=True),
        events=[submitted_event(sweep_id, config, priority=priority)],
    )


async def take(journal: Journal, sweep_id: str, lease: Lease) -> None:
    """Take a sweep over, at once where whoever ran it is known to have died.

    Raises:
        SweepUnknownError: there is none of that name.
        SweepTakenError: somebody else runs it, or may do so.
    """
    try:
        await journal.take(sweep_id, lease)
    except SweepTakenError as error:
        if not is_dead(error.owner):
            raise
        await journal.take(sweep_id, lease, instead_of=error.owner)


def config_of(row: SweepRow) -> SmartSearchConfig:
    """The configuration of a sweep in the journal.

    Raises:
        JournalDamagedError: it cannot be read.
    """
    try:
        return SmartSearchConfig.model_validate_json(row.config)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise JournalDamagedError(
            f"sweep {row.sweep_id}: its configuration cannot be read: {where}: {first['msg']}"
        ) from error
