"""How many connections there may be, and how long each may keep the daemon waiting."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any, Final

import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from schemas.daemon import Problem
from spica_async.service.http.problems import PROBLEM_TYPE
from spica_async.service.http.settings import HttpSettings

log = structlog.get_logger(__name__)

_TELL_AGAIN_SECONDS: Final = 60.0


class Room:
    """The connections of one server that keep it waiting.

    Uvicorn's own `limit_concurrency` closes none of them: it answers requests with a 503, and a
    connection without a request is never asked for one.

    Args:
        settings: how many connections there may be, and how long each may keep us waiting.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self.most = settings.connections
        self.head_seconds = settings.head_seconds
        self.stuck_seconds = settings.stuck_seconds
        self.refusal = _refusal(settings)
        # Who has kept us waiting longest is the first.
        self._owing: dict[Connection, None] = {}
        self._told_at: float | None = None

    def owes(self, connection: Connection) -> None:
        """From now on a connection keeps us waiting."""
        self._owing[connection] = None

    def owes_nothing(self, connection: Connection) -> None:
        """A connection keeps us waiting no longer."""
        self._owing.pop(connection, None)

    def make(self, now: float) -> bool:
        """End the connection that has kept us waiting longest; tell whether there was one.

        Args:
            now: in seconds of the loop's clock.
        """
        if self._told_at is None or now - self._told_at >= _TELL_AGAIN_SECONDS:
            self._told_at = now
            log.warning("http.full", connections=self.most)
        if not self._owing:
            return False
        next(iter(self._owing)).end()
        return True


class Connection(H11Protocol):
    """A connection that has a time for each whole head of a request, and for taking its answers.

    Between these it may last as long as it likes, as event streams do. The time of a body is that
    of whoever reads it.
    """

    def __init__(self, *args: Any, room: Room, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._room = room
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Take it in, in another's place where there are as many as may be, or turn it away."""
        super().connection_made(transport)
        if len(self.connections) > self._room.most and not self._room.make(self.loop.time()):
            transport.write(self._room.refusal)
            transport.close()
            return
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        super().connection_lost(exc)
        self._disarm()

    def handle_events(self) -> None:
        """See whether a whole head has come."""
        super().handle_events()
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next head."""
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        """Wait for the client to take what it is answered."""
        super().pause_writing()
        self._disarm()
        self._look()

    def resume_writing(self) -> None:
        """The client has taken it."""
        super().resume_writing()
        self._disarm()
        self._look()

    def end(self) -> None:
        """Break it off, with whatever the client has not taken."""
        self._disarm()
        self.transport.abort()

    def _look(self) -> None:
        """Start the time where the client owes us something, or stop it."""
        between = self.cycle is None or self.cycle.response_complete
        if self in self.connections and (between or self.flow.write_paused):
            if self._deadline is None:
                self._arm()
                self._room.owes(self)
        else:
            self._disarm()

    def _arm(self) -> None:
        # Nothing is written meanwhile, so that what is left of an answer gets less or is not taken.
        left = self.transport.get_write_buffer_size()
        seconds = self._room.stuck_seconds if left else self._room.head_seconds
        self._deadline = self.loop.call_later(seconds, self._late, left)

    def _late(self, before: int) -> None:
        if self.transport.get_write_buffer_size() < before:
            self._arm()
        else:
            self.end()

    def _disarm(self) -> None:
        self._room.owes_nothing(self)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def _refusal(settings: HttpSettings) -> bytes:
    """The whole answer of who is turned away before anything was read."""
    status = HTTPStatus.SERVICE_UNAVAILABLE
    body = Problem(
        title=status.phrase,
        status=status,
        detail=f"{settings.connections} connections are open, which is as many as may be",
    ).model_dump_json()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"Content-Type: {PROBLEM_TYPE}",
        f"Content-Length: {len(body)}",
        f"Retry-After: {settings.retry_seconds}",
        "Connection: close",
    )
    return "\r\n".join((*head, "", body)).encode("ascii")
