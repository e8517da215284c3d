"""What differs between the databases that journal and cache of results are kept in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine

from spica_async.storage.errors import StorageError

ResultT = TypeVar("ResultT")


class Database(Protocol):
    """A database, behind an engine of SQLAlchemy's."""

    @property
    def name(self) -> str:
        """What messages call it: what is kept in it, and where; holds no secrets."""

    @property
    def engine(self) -> Engine:
        """SQLAlchemy's, for its events and its dialect."""

    @property
    def writers(self) -> int:
        """How many can write at a time."""

    @property
    def can_be_cut(self) -> bool:
        """Whether a statement under way ends soon when it is cancelled."""

    async def write(self, work: Callable[[Connection], ResultT]) -> ResultT:
        """Do something in a transaction, which is on disk when this returns."""

    async def change_tables(self, work: Callable[[Connection], ResultT]) -> ResultT:
        """The same for the tables themselves, which may take as long as they are large."""

    async def read(self, work: Callable[[Connection], ResultT]) -> ResultT:
        """Do something with one statement that reads, outside of any transaction."""

    async def dispose(self) -> None:
        """Close all connections."""

    def prepare(self) -> None:
        """Make what must be there before the first connection; blocks.

        Raises:
            StorageError: if that cannot be done.
        """

    def check(self) -> None:
        """Look whether what is written will be found again.

        Raises:
            StorageError: if not.
        """

    def keep_others_out(self, connection: Connection) -> None:
        """Be alone with the tables until the transaction ends."""

    def now(self) -> ColumnElement[float]:
        """The time, in seconds since the epoch, for a statement that is executed right now."""

    def translate(self, error: Exception) -> StorageError | None:
        """The error of ours for one of the driver's; None for one that is not the database's."""
