"""Whether the journal can be written, with few looks for many questions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog

from spica_async.journal.port import Journal
from spica_async.storage.errors import StorageError

_FRESH_SECONDS: Final = 2.0
"""How long an answer stands. Anybody may ask, and each look has the database write to its disk."""
_PATIENCE_SECONDS: Final = 2.0
"""A database that has not answered by then counts as one that cannot be written."""

log = structlog.get_logger(__name__)


class WriteProbe:
    """Looks whether a journal can be written.

    To be read it may well be: a standby server can, or a disk that was mounted read-only.

    Args:
        journal: the journal.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._look: asyncio.Task[bool] | None = None
        self._fresh_until = 0.0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Leave no look behind when the context ends."""
        try:
            yield
        finally:
            if self._look is not None:
                self._look.cancel()
                await asyncio.wait({self._look}, timeout=_PATIENCE_SECONDS)

    async def can_write(self) -> bool:
        """Whether it can be written, by a look that is at most seconds old."""
        now = asyncio.get_running_loop().time()
        if self._look is None or (self._look.done() and now >= self._fresh_until):
            self._fresh_until = now + _FRESH_SECONDS
            self._look = asyncio.create_task(self._try())
        await asyncio.wait({self._look}, timeout=_PATIENCE_SECONDS)
        return self._look.done() and not self._look.cancelled() and self._look.result()

    async def _try(self) -> bool:
        try:
            await self._journal.check_writable()
        except StorageError as error:
            log.warning("daemon.journal_not_writable", error=str(error))
            return False
        return True
