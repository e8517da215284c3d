"""What the journal needs to know of a database that is not the same for all of them."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import ColumnElement, Connection
from sqlalchemy.ext.asyncio import AsyncEngine

from spica_async.journal.port import JournalError


class Database(Protocol):
    """A database, behind an engine of SQLAlchemy's."""

    @property
    def name(self) -> str:
        """What to call it in a message; holds no secrets."""

    @property
    def writing(self) -> AsyncEngine:
        """Begins transactions that write."""

    @property
    def reading(self) -> AsyncEngine:
        """Begins none: what is read, is read by one statement."""

    @property
    def writers(self) -> int:
        """How many can write at a time."""

    @property
    def can_be_cut(self) -> bool:
        """Whether a statement under way ends soon when it is cancelled."""

    def prepare(self) -> None:
        """Make what must be there before the first connection; blocks.

        Raises:
            JournalError: if that cannot be done.
        """

    def check(self) -> None:
        """Look whether what is written will be found again.

        Raises:
            JournalError: if not.
        """

    def keep_others_out(self, connection: Connection) -> None:
        """Be alone with the tables until the transaction ends."""

    def now(self) -> ColumnElement[float]:
        """The time, in seconds since the epoch, for a statement that is executed right now."""

    def told(self, error: Exception) -> JournalError | None:
        """An error in our words; None for one that does not come from the database."""
