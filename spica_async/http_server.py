"""Serves an application over HTTP in the caller's event loop, by uvicorn."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager, contextmanager

import structlog
import uvicorn
from starlette.types import ASGIApp

log = structlog.get_logger(__name__)


@asynccontextmanager
async def serving(
    app: ASGIApp,
    listener: socket.socket,
    stop: asyncio.Event,
    *,
    shutdown_seconds: int,
    connections: int | None = None,
) -> AsyncIterator[None]:
    """Serve as long as the context is open and `stop` is not set.

    Leaving the context sets `stop`, and so does a server that fails; its error is raised when the
    context is left. Signals are left to the caller.

    Args:
        app: answers requests.
        listener: closed in the end, unless the server fails.
        stop: set by anybody to end the serving.
        shutdown_seconds: how long requests may take to end then.
        connections: open ones from which on requests are answered with 503; none: any number.
    """
    _log_through_structlog()
    config = uvicorn.Config(
        app,
        # Its protocol is the one that bounds a head's size by itself.
        http="h11",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        # Nothing is told of clients that a proxy could make untrue.
        proxy_headers=False,
        server_header=False,
        limit_concurrency=connections,
        timeout_graceful_shutdown=shutdown_seconds,
    )
    # Not in a TaskGroup: it would wrap whatever the caller raises within the context.
    server = asyncio.create_task(_Server(config, stop).serve(sockets=[listener]), name="http")
    server.add_done_callback(lambda _: stop.set())
    try:
        yield
    finally:
        stop.set()
        await server


class _Server(uvicorn.Server):
    """A server that ends when an event is set, and never by a signal."""

    def __init__(self, config: uvicorn.Config, stop: asyncio.Event) -> None:
        super().__init__(config)
        self._stop = stop

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to the program."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Whether to end; asked ten times in a second."""
        return await super().on_tick(counter) or self._stop.is_set()


class _ToStructlog(logging.Handler):
    """Passes on what a library logs by the standard module."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record's message."""
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            # The server has cut off a request, and has logged that.
            return
        log.log(
            record.levelno,
            "http.server",
            message=record.getMessage(),
            exc_info=record.exc_info or None,
        )


def _log_through_structlog() -> None:
    """Have uvicorn's warnings where ours are, without its lines on starting and stopping."""
    logger = logging.getLogger("uvicorn")
    logger.handlers[:] = [_ToStructlog()]
    logger.propagate = False
    logger.setLevel(logging.WARNING)
