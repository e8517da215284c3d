"""A piece of work in a database: in one transaction, to its end, with errors of ours."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from spica_async.processes.shielded import shielded
from spica_async.storage.errors import StorageBusyError, StorageDamagedError, StorageError

ResultT = TypeVar("ResultT")
Work = Callable[[Connection], ResultT]
"""What is done with a connection; it blocks, and is done where that holds up nobody."""


class Database(ABC):
    """A database, behind an engine of SQLAlchemy's; what differs between the kinds is abstract.

    Neither driver says what became of a statement that was cancelled, and the caller's next one
    could run into it. So all work is done whole, though the caller be cancelled, which hears of
    that when all is done. The database's time limits bound the wait, and a second cancellation
    ends it where the connection can be cut.

    Args:
        name: What messages call it: what is kept in it, and where; holds no secrets.
        engine: SQLAlchemy's, for its events and its dialect.
    """

    WRITERS: ClassVar[int]
    """How many can write at a time."""
    CAN_BE_CUT: ClassVar[bool]
    """Whether a statement under way ends soon when it is cancelled."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.name = name
        self.engine = engine
        # To wait for one's turn here costs a database nothing.
        self._turns = asyncio.Semaphore(self.WRITERS)

    async def write(self, work: Work[ResultT]) -> ResultT:
        """Do something in a transaction, which is on disk when this returns.

        Raises:
            StorageError: if the database could not do it.
        """
        async with self._turns:
            return await self._whole(self._write, work)

    async def change_tables(self, work: Work[ResultT]) -> ResultT:
        """Do something with the tables, alone with them, in a transaction, however long it takes.

        Raises:
            StorageError: if the database could not do it.
        """
        async with self._turns:
            return await self._whole(self._change_tables, work)

    async def read(self, work: Work[ResultT]) -> ResultT:
        """Do something with one statement that reads, outside of any transaction.

        Raises:
            StorageError: if the database could not do it.
        """
        return await self._whole(self._read, work)

    @abstractmethod
    def prepare(self) -> None:
        """Make what must be there before the first connection; blocks.

        Raises:
            StorageError: if that cannot be done.
        """

    @abstractmethod
    def now(self) -> ColumnElement[float]:
        """The time, in seconds since the epoch, for a statement that is executed right now."""

    @abstractmethod
    def translate(self, error: Exception) -> StorageError | None:
        """The error of ours for one of the driver's; None for one that is not the database's."""

    @abstractmethod
    async def dispose(self) -> None:
        """Close all connections."""

    @abstractmethod
    async def _write(self, work: Work[ResultT]) -> ResultT: ...

    @abstractmethod
    async def _change_tables(self, work: Work[ResultT]) -> ResultT: ...

    @abstractmethod
    async def _read(self, work: Work[ResultT]) -> ResultT: ...

    async def _whole(
        self,
        do: Callable[[Work[ResultT]], Coroutine[Any, Any, ResultT]],
        work: Work[ResultT],
    ) -> ResultT:
        return await shielded(self._translated(do(work)), can_be_cut=self.CAN_BE_CUT)

    async def _translated(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        try:
            return await work
        except IntegrityError as error:
            raise StorageDamagedError(f"{self.name}: {error.orig}") from error
        except PoolTimeoutError as error:
            raise StorageBusyError(f"{self.name}: too many read it at once") from error
        except Exception as error:
            translated = self.translate(error)
            if translated is None:
                raise
            raise translated from error
