"""What was pushed to a reader and not read yet."""

from __future__ import annotations

import asyncio
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class Inbox(Generic[ItemT]):
    """Iterates over what is put into it, until it is closed; several tasks may read."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[ItemT | None] = asyncio.Queue()
        self._closed = False
        self._failure: Exception | None = None

    def __aiter__(self) -> Inbox[ItemT]:
        return self

    async def __anext__(self) -> ItemT:
        item = await self._items.get()
        if item is None:
            # Left in place for others who wait and for whoever asks again.
            self._items.put_nowait(None)
            if self._failure is not None:
                raise self._failure
            raise StopAsyncIteration
        return item

    def put(self, item: ItemT) -> None:
        """Add an item behind the others."""
        self._items.put_nowait(item)

    def clear(self) -> list[ItemT]:
        """Take out and return what was not read."""
        unread: list[ItemT] = []
        while not self._items.empty():
            item = self._items.get_nowait()
            if item is not None:
                unread.append(item)
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
