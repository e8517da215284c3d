"""A database's errors translated, by the kind that decides whether to try again."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import asyncpg
import pytest

from spica_async.storage.address import FileAddress, ServerAddress
from spica_async.storage.errors import (
    StorageBusyError,
    StorageDamagedError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from spica_async.storage.postgres import PostgresDatabase
from spica_async.storage.sqlite import SqliteDatabase


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (asyncpg.DiskFullError("x"), StorageFullError),
        (asyncpg.TooManyConnectionsError("x"), StorageUnavailableError),
        (asyncpg.OutOfMemoryError("x"), StorageUnavailableError),
        (asyncpg.AdminShutdownError("x"), StorageUnavailableError),
        (asyncpg.CannotConnectNowError("x"), StorageUnavailableError),
        (asyncpg.ConnectionDoesNotExistError("x"), StorageUnavailableError),
        (asyncpg.PostgresIOError("x"), StorageUnavailableError),
        (asyncpg.InterfaceError("x"), StorageUnavailableError),
        (ConnectionResetError("x"), StorageUnavailableError),
        (TimeoutError(), StorageUnavailableError),
        (asyncpg.LockNotAvailableError("x"), StorageBusyError),
        (asyncpg.QueryCanceledError("x"), StorageBusyError),
        (asyncpg.DeadlockDetectedError("x"), StorageBusyError),
        (asyncpg.SerializationError("x"), StorageBusyError),
        (asyncpg.DataCorruptedError("x"), StorageDamagedError),
        (asyncpg.IndexCorruptedError("x"), StorageDamagedError),
        (asyncpg.InsufficientPrivilegeError("x"), StorageError),
        (asyncpg.InvalidPasswordError("x"), StorageError),
        (asyncpg.DataError("x"), StorageError),
        (asyncpg.ReadOnlySQLTransactionError("x"), StorageUnavailableError),
        (asyncpg.CrashShutdownError("x"), StorageUnavailableError),
        (asyncpg.IdleSessionTimeoutError("x"), StorageUnavailableError),
        (asyncpg.ConfigurationLimitExceededError("x"), StorageUnavailableError),
        (asyncpg.PostgresSystemError("x"), StorageUnavailableError),
        (asyncpg.TargetServerAttributeNotMatched("x"), StorageUnavailableError),
        (asyncpg.ObjectInUseError("x"), StorageBusyError),
        (asyncpg.UndefinedTableError("x"), StorageError),
    ],
)
def test_postgresql(error: Exception, kind: type[StorageError]) -> None:
    database = PostgresDatabase(
        ServerAddress("postgresql://a:b@c/d", "postgresql://a@c/d"), 1.0, holds="journal"
    )
    translated = database.translate(error)
    assert type(translated) is kind
    assert str(translated).startswith("journal postgresql://a@c/d: ")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("SQLITE_BUSY", StorageBusyError),
        ("SQLITE_BUSY_RECOVERY", StorageBusyError),
        ("SQLITE_LOCKED_SHAREDCACHE", StorageBusyError),
        ("SQLITE_FULL", StorageFullError),
        ("SQLITE_IOERR_WRITE", StorageFullError),
        ("SQLITE_IOERR_READ", StorageUnavailableError),
        ("SQLITE_CANTOPEN", StorageUnavailableError),
        ("SQLITE_CORRUPT_INDEX", StorageDamagedError),
        ("SQLITE_NOTADB", StorageDamagedError),
        ("SQLITE_READONLY", StorageUnavailableError),
        ("SQLITE_READONLY_ROLLBACK", StorageUnavailableError),
        ("SQLITE_READONLY_DBMOVED", StorageError),
        ("SQLITE_NOMEM", StorageUnavailableError),
        ("SQLITE_PROTOCOL", StorageBusyError),
        ("SQLITE_PERM", StorageError),
        ("SQLITE_ERROR", StorageError),
    ],
)
def test_sqlite(code: str, kind: type[StorageError]) -> None:
    error = sqlite3.OperationalError("x")
    error.sqlite_errorname = code
    translated = SqliteDatabase(FileAddress(Path("/a.db")), 1.0, holds="journal").translate(error)
    assert type(translated) is kind
    assert str(translated).startswith("journal /a.db: x")


def test_what_is_a_bug_stays_one() -> None:
    for database in (
        PostgresDatabase(
            ServerAddress("postgresql://c/d", "postgresql://c/d"), 1.0, holds="journal"
        ),
        SqliteDatabase(FileAddress(Path("/a.db")), 1.0, holds="journal"),
    ):
        assert database.translate(KeyError("x")) is None
