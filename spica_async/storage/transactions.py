"""A piece of work in a database: in one transaction, to its end, with errors of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from spica_async.processes.shielded import shielded
from spica_async.storage.database import Database
from spica_async.storage.errors import StorageBusyError, StorageDamagedError

ResultT = TypeVar("ResultT")
Work = Callable[[Connection], ResultT]
"""What is done with a connection; it blocks, and is done where that holds up nobody."""


class Transactions:
    """Does work in a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # To wait for one's turn here costs a database nothing.
        self._turns = asyncio.Semaphore(database.writers)

    async def write(self, work: Work[ResultT]) -> ResultT:
        """Do something in a transaction, which is on disk when this returns.

        Raises:
            StorageError: if the database could not do it.
        """
        return await self._alone(partial(self._database.write, work))

    async def change_tables(self, work: Work[ResultT]) -> ResultT:
        """Do something with the tables themselves, in a transaction, for as long as it takes.

        Raises:
            StorageError: if the database could not do it.
        """
        return await self._alone(partial(self._database.change_tables, work))

    async def read(self, work: Work[ResultT]) -> ResultT:
        """Do something with one statement that reads.

        Raises:
            StorageError: if the database could not do it.
        """

        async def reading() -> ResultT:
            with self._translated():
                return await self._database.read(work)

        return await self._to_its_end(reading())

    async def _alone(self, write: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        async def transaction() -> ResultT:
            with self._translated():
                self._database.check()
                return await write()

        async with self._turns:
            return await self._to_its_end(transaction())

    async def _to_its_end(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Do something whole, though the caller be cancelled: it is told when all is done.

        Neither driver says what became of a statement that was cancelled, and the caller's next one
        could run into it. The database's time limits bound the wait, and a second cancellation ends
        it where the connection can be cut.
        """
        return await shielded(work, can_be_cut=self._database.can_be_cut)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise StorageDamagedError(f"{self._database.name}: {error.orig}") from error
        except PoolTimeoutError as error:
            raise StorageBusyError(f"{self._database.name}: too many read it at once") from error
        except Exception as error:
            translated = self._database.translate(error)
            if translated is None:
                raise
            raise translated from error
