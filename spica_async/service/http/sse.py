"""Server-sent events: what happens to sweeps, for as long as somebody listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import AsyncExitStack, aclosing
from enum import Enum, auto
from typing import Any, Final

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from schemas.lifecycle import SWEEP_EVENT, SweepEvent
from spica_async.errors import SpicaError
from spica_async.service.http.limits import Streams
from spica_async.service.port import UnreadableEvent

log = structlog.get_logger(__name__)

EVENT_STREAM: Final = "text/event-stream"
_HEARTBEAT: Final = b": alive\n\n"


class _End(Enum):
    """Why a stream ends."""

    OVER = auto()
    """There is no more to tell, or the server ends."""
    GONE = auto()
    """The reader has left, or was left since it takes nothing."""


class EventStream(Response):
    """An answer that goes on until the events end, the reader leaves or the server is stopped.

    Args:
        events: in their order.
        streams: that this is one of.
        numbered: give each event its number as its `id`, for the reader to go on from there.
        heartbeat_seconds: a comment is sent as often, for both sides to see that the other lives.
    """

    media_type = EVENT_STREAM

    def __init__(
        self,
        events: AsyncIterator[SweepEvent | UnreadableEvent],
        streams: Streams,
        *,
        numbered: bool,
        heartbeat_seconds: float,
    ) -> None:
        # The second keeps a proxy from collecting events before it passes them on.
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._streams = streams
        self._numbered = numbered
        self._heartbeat_seconds = heartbeat_seconds
        self._sending = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # ASGI's signature
        """Send what there is, as it comes.

        Raises:
            ProblemError: there are as many streams as may be; nothing was sent.
        """
        with self._streams.one():
            async with AsyncExitStack() as stack:
                if isinstance(self._events, AsyncGenerator):
                    await stack.enter_async_context(aclosing(self._events))
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
                end = await _first(
                    self._tell(send), self._beat(send), self._ended(), _left(receive)
                )
            if end is _End.OVER:
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, send: Send) -> _End:
        try:
            async for event in self._events:
                if not await self._send(send, self._encode(event)):
                    return _End.GONE
        except SpicaError as error:
            # Too late for another answer; who listens comes again and is then told.
            log.warning("http.stream_failed", why=str(error))
        return _End.OVER

    async def _beat(self, send: Send) -> _End:
        # At once, so that the reader has the headers before the first event.
        while await self._send(send, _HEARTBEAT):  # noqa: ASYNC110  # time is what is waited for
            await asyncio.sleep(self._heartbeat_seconds)
        return _End.GONE

    async def _ended(self) -> _End:
        await self._streams.ending.wait()
        return _End.OVER

    async def _send(self, send: Send, body: bytes) -> bool:
        """Tell whether the reader has taken it, as far as its buffers go.

        One who takes nothing is left by the server, see `Connection`.
        """
        try:
            async with self._sending:
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except OSError:
            return False
        return True

    def _encode(self, event: SweepEvent | UnreadableEvent) -> bytes:
        number = event.number if isinstance(event, UnreadableEvent) else event.sequence
        name = b"id: %d\n" % number if self._numbered else b""
        if isinstance(event, UnreadableEvent):
            # Without data it is no event to the reader, who goes on behind it all the same.
            return b"%s: %s\n\n" % (name, str(event).encode())
        # JSON of pydantic's has no line breaks, which would end the field.
        data = SWEEP_EVENT.dump_json(event)
        return b"%sevent: %s\ndata: %s\n\n" % (name, event.data.kind.encode(), data)


async def _left(receive: Receive) -> _End:
    while (await receive())["type"] != "http.disconnect":
        pass
    return _End.GONE


async def _first(*ways: Coroutine[Any, Any, _End]) -> _End:
    """What the first of these comes to; the others are cancelled."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(way) for way in ways]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
    # In their order: where all has been told and the reader is gone, too, all has been told.
    return next(task.result() for task in tasks if task in done)
