"""SQLite: one file, one writer at a time."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
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
from spica_async.storage.address import FileAddress
from spica_async.storage.database import ResultT
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


class SqliteDatabase:
    """A file on this host; see `Database`."""

    writers = 1
    # A thread executes it.
    can_be_cut = False

    def __init__(self, address: FileAddress, busy_seconds: float, *, holds: str) -> None:
        self.name = f"{holds} {address}"
        self._path = address.path
        self._file: tuple[int, int] | None = None
        # What is opened must be there: a file that has gone is not replaced by an empty one.
        uri = f"file:{quote(os.fsencode(self._path))}?mode=rw"
        self.engine = create_engine(
            URL.create("sqlite", database=str(self._path)), poolclass=QueuePool
        )
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

    async def write(self, work: Callable[[Connection], ResultT]) -> ResultT:
        """See `Database.write`."""

        def transaction() -> ResultT:
            with self.engine.begin() as connection:
                return work(connection)

        return await asyncio.get_running_loop().run_in_executor(self._writer, transaction)

    async def change_tables(self, work: Callable[[Connection], ResultT]) -> ResultT:
        """See `Database.change_tables`."""
        return await self.write(work)

    async def read(self, work: Callable[[Connection], ResultT]) -> ResultT:
        """See `Database.read`."""

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
            self._file = self._identity()
        except OSError as error:
            raise StorageError(f"{self.name}: {file_problem(error)}") from error
        if not os.access(self._path.parent, os.W_OK):
            raise StorageError(f"{self.name}: its folder cannot be written")

    def check(self) -> None:
        """See `Database.check`; a file that was deleted can still be written, for nobody."""
        try:
            same = self._identity() == self._file
        except OSError:
            same = False
        if not same:
            raise StorageError(f"{self.name}: the file was deleted or replaced meanwhile")

    def keep_others_out(self, connection: Connection) -> None:
        """See `Database.keep_others_out`; any transaction that writes does that."""

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

    def _identity(self) -> tuple[int, int]:
        found = self._path.stat()
        return found.st_dev, found.st_ino


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
