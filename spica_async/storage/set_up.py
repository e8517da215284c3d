"""A database at its address, with its tables made or brought up to date."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Table

from spica_async.journal.port import JournalBusyError, JournalVersionError
from spica_async.journal.tables import Steps, bring_up_to_date, version_of
from spica_async.storage.address import FileAddress, read_address
from spica_async.storage.database import Database
from spica_async.storage.postgres import PostgresDatabase
from spica_async.storage.sqlite import SqliteDatabase
from spica_async.storage.transactions import Transactions

_RETRY_SECONDS: Final = 0.05


def database_at(where: str | Path, busy_seconds: float) -> Database:
    """The database that an address names; nothing is connected yet.

    Args:
        where: See `read_address`.
        busy_seconds: How long to wait for what others hold.

    Raises:
        InputError: if it names none.
    """
    address = read_address(where)
    if isinstance(address, FileAddress):
        return SqliteDatabase(address, busy_seconds)
    return PostgresDatabase(address, busy_seconds)


async def set_up(
    database: Database, do: Transactions, steps: Steps, version_table: Table, busy_seconds: float
) -> None:
    """Make tables, or bring those of an older version up to date.

    Args:
        database: Where they are.
        do: Does work in it.
        steps: That lead to them.
        version_table: Where the number of steps that were taken is kept.
        busy_seconds: How long others may be at the same.

    Raises:
        JournalVersionError: if a newer version has written them.
        JournalError: if it cannot be done.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + busy_seconds
    while True:
        try:
            version = await do.read(lambda connection: version_of(connection, version_table))
            break
        except JournalBusyError:
            # SQLite does not wait by itself where two are the first to open a file.
            if clock() > until:
                raise
            await asyncio.sleep(_RETRY_SECONDS)
    if version < len(steps):

        def work(connection: Connection) -> None:
            database.keep_others_out(connection)
            bring_up_to_date(connection, steps, version_table)

        await do.change_tables(work)
    if version > len(steps):
        raise JournalVersionError(
            f"journal {database.name}: it is of version {version}, and this program "
            f"knows none after {len(steps)}: open it with the newer spica-async that wrote it"
        )
