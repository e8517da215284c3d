"""Opens a database at its address, with its tables made or brought up to date."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Table, insert, inspect, select, update

from spica_async.processes.threads import with_files
from spica_async.storage.address import FileAddress, read_address
from spica_async.storage.database import Database
from spica_async.storage.errors import StorageBusyError, StorageVersionError
from spica_async.storage.postgres import PostgresDatabase
from spica_async.storage.sqlite import SqliteDatabase

_RETRY_SECONDS: Final = 0.05

Steps = Sequence[Sequence[str]]
"""Each takes a database one version further, the first an empty one, by statements that both SQLite
and PostgreSQL know. A step that has ever been released stays as it is."""


def database_at(where: str | Path, busy_seconds: float, *, holds: str) -> Database:
    """The database that an address names; nothing is connected yet.

    Args:
        where: See `read_address`.
        busy_seconds: How long to wait for what others hold.
        holds: What is kept in it, for messages, e.g. `journal`.

    Raises:
        InputError: if it names none.
    """
    address = read_address(where, holds=holds)
    if isinstance(address, FileAddress):
        return SqliteDatabase(address, busy_seconds, holds=holds)
    return PostgresDatabase(address, busy_seconds, holds=holds)


@asynccontextmanager
async def set_up(
    database: Database, steps: Steps, version_table: Table, busy_seconds: float
) -> AsyncIterator[None]:
    """Connect a database and bring its tables up to date; it is closed when the context ends.

    Args:
        database: See `database_at`.
        steps: Lead to its tables.
        version_table: Keeps the number of steps that were taken.
        busy_seconds: How long others may be at the same.

    Raises:
        StorageVersionError: if a newer version has written the tables.
        StorageError: if it cannot be done.
    """
    try:
        await with_files(database.prepare)
        version = await _version(database, version_table, busy_seconds)
        if version < len(steps):
            await database.change_tables(
                lambda connection: bring_up_to_date(connection, steps, version_table)
            )
        if version > len(steps):
            raise StorageVersionError(
                f"{database.name}: it is of version {version}, and this program "
                f"knows none after {len(steps)}: open it with the newer spica-async that wrote it"
            )
        yield
    finally:
        await database.dispose()


async def _version(database: Database, version_table: Table, busy_seconds: float) -> int:
    clock = asyncio.get_running_loop().time
    until = clock() + busy_seconds
    while True:
        try:
            return await database.read(lambda connection: version_of(connection, version_table))
        except StorageBusyError:
            # SQLite does not wait by itself where two are the first to open a file.
            if clock() > until:
                raise
            await asyncio.sleep(_RETRY_SECONDS)


def version_of(connection: Connection, version_table: Table) -> int:
    """The version of a database's tables; 0 if there are none."""
    if not inspect(connection).has_table(version_table.name):
        return 0
    version: int = connection.execute(select(version_table.c.version)).scalar_one()
    return version


def bring_up_to_date(connection: Connection, steps: Steps, version_table: Table) -> None:
    """Take the steps that a database lacks, in the caller's transaction and with it alone."""
    version = version_of(connection, version_table)
    if version == 0:
        connection.exec_driver_sql(
            f"CREATE TABLE {version_table.name} (version INTEGER NOT NULL PRIMARY KEY)"
        )
        connection.execute(insert(version_table).values(version=0))
    for step in steps[version:]:
        for statement in step:
            connection.exec_driver_sql(statement)
    connection.execute(update(version_table).values(version=max(version, len(steps))))
