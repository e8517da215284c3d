"""PostgreSQL: a server that many hosts share."""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import asyncpg
from sqlalchemy import ColumnElement, Double, NullPool, cast, extract, func
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from spica_async.errors import InputError, file_problem
from spica_async.storage.address import TLS_FILES, ServerAddress
from spica_async.storage.database import Database, ResultT, Work
from spica_async.storage.errors import (
    StorageBusyError,
    StorageDamagedError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from spica_async.tls import TlsOptions, explained, tls_refusal

_CONNECT_SECONDS: Final = 10.0
# So that a host which vanishes in the middle of a transaction holds what that has locked for less
# than its lease: our transactions wait for nobody but the server, and take milliseconds.
_IDLE_SECONDS: Final = 10
# Between two looks whether the other end of a silent connection is still there, and for how long
# it may answer none of them.
_LOOK_SECONDS: Final = 10
_SILENT_SECONDS: Final = 30
# Whoever changes the tables has the lock of this number, which stands for nothing else.
_TABLES_LOCK: Final = 0x5350_4943_41

_TLS_OPTIONS: Final = TlsOptions(
    "sslrootcert in the URL", "sslmode=disable in the URL", "sslcert and sslkey in the URL"
)
# Where OpenSSL has trouble with a file, before anything is sent.
_OF_FILES: Final = frozenset({"PEM", "X509"})
_NO_PEM: Final = "[SSL] PEM lib"

_READ_ONLY: Final = "25006"

# By the beginning of an SQLSTATE; the first one counts. Whatever is not named stays as it is
# however often it is tried: a missing table or right, a wrong password, a statement that is none.
_KINDS: Final[Sequence[tuple[str, type[StorageError]]]] = (
    ("08", StorageUnavailableError),  # The connection.
    (_READ_ONLY, StorageUnavailableError),  # A standby that is yet to be promoted.
    ("25P03", StorageUnavailableError),  # We were silent for too long in a transaction,
    ("25P04", StorageUnavailableError),  # or took too long over it.
    ("40", StorageBusyError),  # A deadlock, or what would not be as if one after the other.
    ("53100", StorageFullError),
    ("53", StorageUnavailableError),  # Memory, connections.
    ("55006", StorageBusyError),  # Others use it, e.g. the database while it is copied.
    ("55P03", StorageBusyError),  # A lock was not to be had in time.
    ("57014", StorageBusyError),  # A statement was cancelled.
    ("57P", StorageUnavailableError),  # The server ends, starts, or has ended the connection.
    ("58", StorageUnavailableError),  # The server's disk, or another part of its system.
    ("XX001", StorageDamagedError),
    ("XX002", StorageDamagedError),
)


class PostgresDatabase(Database):
    """A database on a server; see `Database`."""

    WRITERS = 4
    CAN_BE_CUT = True

    def __init__(self, address: ServerAddress, busy_seconds: float, *, holds: str) -> None:
        name = f"{holds} {address}"
        self._files = address.files

        async def connect(answer_seconds: float | None) -> Any:
            try:
                connection = await asyncpg.connect(
                    address.url,
                    timeout=_CONNECT_SECONDS,
                    target_session_attrs=_wanted(address),
                    # So that a server which is there and does not answer is noticed.
                    command_timeout=answer_seconds,
                )
            except asyncpg.ClientConfigurationError as error:
                raise InputError(f"{name}: {error}") from error
            except ssl.SSLError as error:
                if error.library not in _OF_FILES and _NO_PEM not in str(error):
                    raise
                raise InputError(
                    f"{name}: {' or '.join(TLS_FILES)} in the URL: not in PEM"
                    f" format, or they do not go together ({explained(error)})"
                ) from error
            except (ValueError, OverflowError):
                # What the driver says of it may quote any part of it.
                raise InputError(f"{name}: this URL cannot be used") from None
            # A transaction is on disk before it is acknowledged, whatever the server's settings.
            await connection.execute(
                f"SET lock_timeout = {round(busy_seconds * 1000)};"
                "SELECT set_config('synchronous_commit', 'on', false)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
            await _notice_absence(connection)
            return connection

        self._writing = create_async_engine(
            "postgresql+asyncpg://",
            async_creator=partial(connect, busy_seconds + _CONNECT_SECONDS),
            # A connection may have been cut since it was last used.
            pool_pre_ping=True,
            pool_size=self.WRITERS + 1,
        )
        # An index over years of sweeps is not made in seconds.
        self._changing = create_async_engine(
            "postgresql+asyncpg://", async_creator=partial(connect, None), poolclass=NullPool
        )
        self._reading = self._writing.execution_options(isolation_level="AUTOCOMMIT")
        super().__init__(name, self._writing.sync_engine)

    async def _write(self, work: Work[ResultT]) -> ResultT:
        try:
            async with self._writing.begin() as connection:
                return await connection.run_sync(work)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) == _READ_ONLY:
                # By now another server may have the address, and a connection that is kept would
                # stay with this one.
                await self._writing.dispose()
            raise

    async def _change_tables(self, work: Work[ResultT]) -> ResultT:
        async with self._changing.begin() as connection:
            # Two cannot both make a table that is missing.
            await connection.execute(func.pg_advisory_xact_lock(_TABLES_LOCK))
            return await connection.run_sync(work)

    async def _read(self, work: Work[ResultT]) -> ResultT:
        async with self._reading.connect() as connection:
            return await connection.run_sync(work)

    async def dispose(self) -> None:
        """See `Database.dispose`."""
        await self._writing.dispose()

    def prepare(self) -> None:
        """See `Database.prepare`; making a database is the server's business."""
        for option, path in self._files.items():
            try:
                path.open("rb").close()
            except OSError as error:
                raise InputError(
                    f"{self.name}: {option} in the URL: {path}: {file_problem(error)}"
                ) from error

    def now(self) -> ColumnElement[float]:
        """See `Database.now`; the server's, for the hosts have one each."""
        return cast(extract("epoch", func.clock_timestamp()), Double)

    def translate(self, error: Exception) -> StorageError | None:
        """See `Database.translate`."""
        cause = error
        if isinstance(error, DBAPIError) and isinstance(error.orig, Exception):
            wrapped = error.orig
            cause = wrapped.__cause__ if isinstance(wrapped.__cause__, Exception) else wrapped
        meaning = _meaning(cause)
        if meaning is None and isinstance(error, DBAPIError):
            kind = StorageUnavailableError if error.connection_invalidated else StorageError
            meaning = kind, str(cause)
        if meaning is None:
            return None
        kind, text = meaning
        return kind(f"{self.name}: {text}")


def _meaning(cause: Exception) -> tuple[type[StorageError], str] | None:
    """What kind of error one of the driver's is, and what to say of it."""
    if isinstance(cause, TimeoutError):
        return StorageUnavailableError, "the server does not answer"
    if isinstance(cause, ssl.SSLError):
        return StorageUnavailableError, tls_refusal(cause, _TLS_OPTIONS) or explained(cause)
    if isinstance(cause, asyncpg.TargetServerAttributeNotMatched):
        return StorageUnavailableError, "none of its servers takes writes"
    if isinstance(cause, OSError | asyncpg.InterfaceError):
        # What is a ValueError is wrong each time.
        is_wrong = isinstance(cause, ValueError)
        return StorageError if is_wrong else StorageUnavailableError, str(cause)
    state = getattr(cause, "sqlstate", None)
    if isinstance(state, str):
        kinds = (kind for prefix, kind in _KINDS if state.startswith(prefix))
        return next(kinds, StorageError), str(cause)
    return None


def _wanted(address: ServerAddress) -> str | None:
    """Which of several servers to take; none: it is given elsewhere, or there is one."""
    is_given = "target_session_attrs" in address.url or "PGTARGETSESSIONATTRS" in os.environ
    return "read-write" if address.has_several_hosts and not is_given else None


async def _notice_absence(connection: Any) -> None:
    """Have the server end this session should it hear of us no more; every user may do that."""
    settings = {
        "idle_in_transaction_session_timeout": f"{_IDLE_SECONDS}s",
        "tcp_keepalives_idle": f"{_LOOK_SECONDS}",
        "tcp_keepalives_interval": f"{_LOOK_SECONDS}",
        "tcp_keepalives_count": f"{_SILENT_SECONDS // _LOOK_SECONDS}",
        "tcp_user_timeout": f"{_SILENT_SECONDS}s",
    }
    # But for those that an older server does not know.
    await connection.execute(
        "SELECT set_config(name, value, false)"
        " FROM unnest($1::text[], $2::text[]) AS wanted (name, value)"
        " WHERE current_setting(name, true) IS NOT NULL",
        list(settings),
        list(settings.values()),
    )
