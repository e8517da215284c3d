"""What is told of a database's errors, by the kind that decides whether to try again."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import asyncpg
import pytest

from spica_async.journal import (
    JournalBusyError,
    JournalDamagedError,
    JournalError,
    JournalFullError,
    JournalUnavailableError,
)
from spica_async.storage.address import FileAddress, ServerAddress
from spica_async.storage.postgres import PostgresDatabase
from spica_async.storage.sqlite import SqliteDatabase


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (asyncpg.DiskFullError("x"), JournalFullError),
        (asyncpg.TooManyConnectionsError("x"), JournalUnavailableError),
        (asyncpg.OutOfMemoryError("x"), JournalUnavailableError),
        (asyncpg.AdminShutdownError("x"), JournalUnavailableError),
        (asyncpg.CannotConnectNowError("x"), JournalUnavailableError),
        (asyncpg.ConnectionDoesNotExistError("x"), JournalUnavailableError),
        (asyncpg.PostgresIOError("x"), JournalUnavailableError),
        (asyncpg.InterfaceError("x"), JournalUnavailableError),
        (ConnectionResetError("x"), JournalUnavailableError),
        (TimeoutError(), JournalUnavailableError),
        (asyncpg.LockNotAvailableError("x"), JournalBusyError),
        (asyncpg.QueryCanceledError("x"), JournalBusyError),
        (asyncpg.DeadlockDetectedError("x"), JournalBusyError),
        (asyncpg.SerializationError("x"), JournalBusyError),
        (asyncpg.DataCorruptedError("x"), JournalDamagedError),
        (asyncpg.IndexCorruptedError("x"), JournalDamagedError),
        (asyncpg.InsufficientPrivilegeError("x"), JournalError),
        (asyncpg.InvalidPasswordError("x"), JournalError),
        (asyncpg.DataError("x"), JournalError),
        (asyncpg.ReadOnlySQLTransactionError("x"), JournalUnavailableError),
        (asyncpg.CrashShutdownError("x"), JournalUnavailableError),
        (asyncpg.IdleSessionTimeoutError("x"), JournalUnavailableError),
        (asyncpg.ConfigurationLimitExceededError("x"), JournalUnavailableError),
        (asyncpg.PostgresSystemError("x"), JournalUnavailableError),
        (asyncpg.TargetServerAttributeNotMatched("x"), JournalUnavailableError),
        (asyncpg.ObjectInUseError("x"), JournalBusyError),
        (asyncpg.UndefinedTableError("x"), JournalError),
    ],
)
def test_postgresql(error: Exception, kind: type[JournalError]) -> None:
    database = PostgresDatabase(ServerAddress("postgresql://a:b@c/d", "postgresql://a@c/d"), 1.0)
    told = database.told(error)
    assert type(told) is kind
    assert str(told).startswith("journal postgresql://a@c/d: ")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("SQLITE_BUSY", JournalBusyError),
        ("SQLITE_BUSY_RECOVERY", JournalBusyError),
        ("SQLITE_LOCKED_SHAREDCACHE", JournalBusyError),
        ("SQLITE_FULL", JournalFullError),
        ("SQLITE_IOERR_WRITE", JournalFullError),
        ("SQLITE_IOERR_READ", JournalUnavailableError),
        ("SQLITE_CANTOPEN", JournalUnavailableError),
        ("SQLITE_CORRUPT_INDEX", JournalDamagedError),
        ("SQLITE_NOTADB", JournalDamagedError),
        ("SQLITE_READONLY", JournalUnavailableError),
        ("SQLITE_READONLY_ROLLBACK", JournalUnavailableError),
        ("SQLITE_READONLY_DBMOVED", JournalError),
        ("SQLITE_NOMEM", JournalUnavailableError),
        ("SQLITE_PROTOCOL", JournalBusyError),
        ("SQLITE_PERM", JournalError),
        ("SQLITE_ERROR", JournalError),
    ],
)
def test_sqlite(code: str, kind: type[JournalError]) -> None:
    error = sqlite3.OperationalError("x")
    error.sqlite_errorname = code
    told = SqliteDatabase(FileAddress(Path("/a.db")), 1.0).told(error)
    assert type(told) is kind
    assert str(told).startswith("journal /a.db: x")


def test_what_is_a_bug_stays_one() -> None:
    for database in (
        PostgresDatabase(ServerAddress("postgresql://c/d", "postgresql://c/d"), 1.0),
        SqliteDatabase(FileAddress(Path("/a.db")), 1.0),
    ):
        assert database.told(KeyError("x")) is None
