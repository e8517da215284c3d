"""What was pushed to a reader and not read yet."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import structlog

ItemT = TypeVar("ItemT")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Unread:
    """How much may wait for a reader; beyond it the oldest is dropped.

    Attributes:
        messages: this many at most.
        bytes: of their bodies, together; a single one may have more.
    """

    messages: int
    bytes: int


MOST_UNREAD: Final = Unread(messages=10_000, bytes=64 * 1024 * 1024)
"""For readers of events and broadcasts. A broker bounds nothing here: it takes for read all that it
has sent to a consumer that does not acknowledge."""


class Inbox(Generic[ItemT]):
    """Iterates over what is put into it, until it is closed; several tasks may read.

    Args:
        most: that may wait; None: as much as is put in.
        name: of what is read, for the log.

    Attributes:
        dropped: how many items nobody has read since there were too many.
    """

    def __init__(self, most: Unread | None = None, *, name: str = "") -> None:
        self.dropped = 0
        self._most = most
        self._name = name
        self._items: asyncio.Queue[tuple[ItemT, int] | None] = asyncio.Queue()
        self._bytes = 0
        self._closed = False
        self._failure: Exception | None = None

    def __aiter__(self) -> Inbox[ItemT]:
        return self

    async def __anext__(self) -> ItemT:
        entry = await self._items.get()
        if entry is None:
            # Left in place for all other readers, now and later.
            self._items.put_nowait(None)
            if self._failure is not None:
                raise self._failure
            raise StopAsyncIteration
        item, size = entry
        self._bytes -= size
        return item

    def put(self, item: ItemT, size: int = 0) -> None:
        """Add an item behind the others.

        Args:
            item: what is added.
            size: of it, in bytes.
        """
        if self._closed:
            return
        self._items.put_nowait((item, size))
        self._bytes += size
        while self._is_too_full():
            self._drop_oldest()

    def clear(self) -> list[ItemT]:
        """Take out and return what was not read."""
        unread: list[ItemT] = []
        while not self._items.empty():
            entry = self._items.get_nowait()
            if entry is not None:
                unread.append(entry[0])
        self._bytes = 0
        if self._closed:
            self._items.put_nowait(None)
        return unread

    def close(self, failure: Exception | None = None) -> list[ItemT]:
        """End the iteration at once, with `failure` for every reader if there is one.

        Returns:
            What was not read.
        """
        self._failure = self._failure or failure
        self._closed = True
        return self.clear()

    def _is_too_full(self) -> bool:
        waiting = self._items.qsize()
        return self._most is not None and (
            waiting > self._most.messages or (waiting > 1 and self._bytes > self._most.bytes)
        )

    def _drop_oldest(self) -> None:
        entry = self._items.get_nowait()
        if entry is not None:
            self._bytes -= entry[1]
        self.dropped += 1
        # Each doubling is logged: a reader that never catches up would fill the log.
        if self.dropped.bit_count() == 1:
            log.warning("bus.unread_dropped", of=self._name, dropped=self.dropped)
