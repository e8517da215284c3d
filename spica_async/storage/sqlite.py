"""SQLite: one file, one writer at a time."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Double,
    QueuePool,
    create_engine,
    event,
    literal,
)
from sqlalchemy.exc import DBAPIError

from spica_async.errors import file_problem
from spica_async.processes.threads import DaemonThreads, in_threads
from spica_async.storage.address import FileAddress, Identity, identity
from spica_async.storage.database import Database, ResultT, Work
from spica_async.storage.errors import (
    StorageBusyError,
    StorageDamagedError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)

# By the beginning of the name that Python gives SQLite's result code; the first one counts. A write
# that fails with the plain IOERR_WRITE ran into a quota or a file's largest size, if not into a
# broken disk.
_KINDS: Final[Sequence[tuple[str, type[StorageError]]]] = (
    ("SQLITE_BUSY", StorageBusyError),
    ("SQLITE_LOCKED", StorageBusyError),
    ("SQLITE_PROTOCOL", StorageBusyError),  # Others were as fast, again and again.
    ("SQLITE_FULL", StorageFullError),
    ("SQLITE_IOERR_WRITE", StorageFullError),
    ("SQLITE_IOERR_SHMSIZE", StorageFullError),
    ("SQLITE_CORRUPT", StorageDamagedError),
    ("SQLITE_NOTADB", StorageDamagedError),
    ("SQLITE_IOERR", StorageUnavailableError),
    ("SQLITE_CANTOPEN", StorageUnavailableError),
    ("SQLITE_NOMEM", StorageUnavailableError),
    ("SQLITE_READONLY_DBMOVED", StorageError),  # It does not come back.
    ("SQLITE_READONLY", StorageUnavailableError),  # Its disk was mounted so, until it is repaired.
)
_READS: Final = "reads"
_READERS: Final = 4


class SqliteDatabase(Database):
    """A file on this host; see `Database`."""

    WRITERS = 1
    # A thread executes it.
    CAN_BE_CUT = False

    def __init__(self, address: FileAddress, busy_seconds: float, *, holds: str) -> None:
        self._path = address.path
        self._file: Identity | None = None
        # What is opened must be there: a file that has gone is not replaced by an empty one.
        uri = f"file:{quote(os.fsencode(self._path))}?mode=rw"
        engine = create_engine(URL.create("sqlite", database=str(self._path)), poolclass=QueuePool)
        super().__init__(f"{holds} {address}", engine)
        self._reading = self.engine.execution_options(**{_READS: True})
        # A whole transaction is one step of a thread: to hand over each statement by itself would
        # take several times as long as the disk does.
        self._writer = DaemonThreads(1, "database-writer")
        self._readers = DaemonThreads(_READERS, "database-reader")

        @event.listens_for(self.engine, "do_connect")
        def connect(_dialect: Any, _record: Any, places: list[Any], names: dict[str, Any]) -> None:
            places[:] = [uri]
            # With no level the driver begins no transactions by itself.
            names.update(
                uri=True, timeout=busy_seconds, isolation_level=None, check_same_thread=False
            )

        event.listen(self.engine, "connect", _set_up)
        event.listen(self.engine, "begin", _begin)

    async def _write(self, work: Work[ResultT]) -> ResultT:
        self._check()

        def transaction() -> ResultT:
            with self.engine.begin() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._writer, transaction)

    async def _change_tables(self, work: Work[ResultT]) -> ResultT:
        return await self._write(work)

    async def _read(self, work: Work[ResultT]) -> ResultT:
        def reading() -> ResultT:
            with self._reading.connect() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._readers, reading)

    async def dispose(self) -> None:
        """See `Database.dispose`."""
        # Of its own: the end waits for nobody else's files.
        threads = DaemonThreads(1, "database-end")
        try:
            await in_threads(threads, self._close)
        finally:
            threads.shutdown(wait=False)

    def _close(self) -> None:
        for threads in (self._writer, self._readers):
            threads.shutdown()
        self.engine.dispose()

    def prepare(self) -> None:
        """See `Database.prepare`."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
            self._file = identity(self._path)
        except OSError as error:
            raise StorageError(f"{self.name}: {file_problem(error)}") from error
        if not os.access(self._path.parent, os.W_OK):
            raise StorageError(f"{self.name}: its folder cannot be written")

    def _check(self) -> None:
        """See that what is written will be found again.

        A file that was deleted can still be written, for nobody.

        Raises:
            StorageError: It will not.
        """
        if identity(self._path) != self._file:
            raise StorageError(f"{self.name}: the file was deleted or replaced meanwhile")

    def now(self) -> ColumnElement[float]:
        """See `Database.now`; there is one host."""
        return literal(time.time(), Double)

    def translate(self, error: Exception) -> StorageError | None:
        """See `Database.translate`."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        if not isinstance(cause, sqlite3.Error):
            return None
        code = getattr(cause, "sqlite_errorname", "")
        kind = next((kind for prefix, kind in _KINDS if code.startswith(prefix)), StorageError)
        # Of a write that fails SQLite says no more than that it did.
        unclear = kind is StorageFullError and code != "SQLITE_FULL"
        reason = " (it cannot grow: no room, a quota, or a broken disk)" if unclear else ""
        return kind(f"{self.name}: {cause}{reason}")


def _set_up(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    # A transaction is on disk before it is acknowledged; readers and the writer do not wait for
    # each other.
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin(connection: Connection) -> None:
    if not connection.get_execution_options().get(_READS):
        # At once: otherwise two that read first and write later could not both go on.
        connection.exec_driver_sql("BEGIN IMMEDIATE")
