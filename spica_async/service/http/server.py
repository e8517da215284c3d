"""Lets an application be heard: uvicorn, as a guest in the daemon's own event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Generator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from functools import partial

import structlog
import uvicorn
from fastapi import FastAPI

from spica_async.errors import InputError
from spica_async.service.http.address import base_url, is_loopback
from spica_async.service.http.connections import Connection, Room
from spica_async.service.http.limits import Streams
from spica_async.service.http.own_token import kept_token
from spica_async.service.http.settings import HttpSettings

log = structlog.get_logger(__name__)

_BACKLOG = 128
_LAST_PORT = 65535


@asynccontextmanager
async def serve(app: FastAPI, settings: HttpSettings, stop: asyncio.Event) -> AsyncIterator[str]:
    """Serve as long as the context is open and `stop` is not set; yields the URL.

    Then nobody new is let in, event streams end, and other requests have
    `settings.shutdown_seconds` to come to their end. Signals are left to the caller. If the server
    fails, it sets `stop`, and its error is raised when the context is left.

    Args:
        app: made by `make_app` with the same settings.
        settings: where to listen.
        stop: set by anybody to end the serving.

    Raises:
        InputError: the address cannot be listened at, or may not without a token; the message
            names the options `--host`, `--port`, `--token-file`. Or its token cannot be kept.
    """
    with ExitStack() as stack:
        # The server closes it, too, unless it has failed.
        listener = stack.enter_context(closing(await _listen(settings)))
        address, port = listener.getsockname()[:2]
        if settings.own_token is not None:
            # Before anybody is answered, so that who is let in has found it there.
            path = stack.enter_context(kept_token(settings.own_token, address, port))
            log.info("http.token_kept", file=str(path))
        async with _serving(app, settings, stop, listener):
            yield base_url(settings.host, port)


@asynccontextmanager
async def _serving(
    app: FastAPI, settings: HttpSettings, stop: asyncio.Event, listener: socket.socket
) -> AsyncIterator[None]:
    _log_through_structlog()
    config = uvicorn.Config(
        app,
        http=partial(Connection, room=Room(settings)),  # type: ignore[arg-type]  # it is only called
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        # Nothing is told of clients that a proxy could make untrue.
        proxy_headers=False,
        server_header=False,
        # As many may be accepted at once, before any of them is counted.
        backlog=_BACKLOG,
        timeout_graceful_shutdown=settings.shutdown_seconds,
    )
    server = _Server(config, stop, app.state.streams)
    # Not in a TaskGroup: it would wrap whatever the caller raises within the context.
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    serving.add_done_callback(lambda _: stop.set())
    log.info("http.serving", url=base_url(settings.host, listener.getsockname()[1]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


class _Server(uvicorn.Server):
    """A server that ends when it is told to, and never by a signal."""

    def __init__(self, config: uvicorn.Config, stop: asyncio.Event, streams: Streams) -> None:
        super().__init__(config)
        self._stop = stop
        self._streams = streams

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to the program."""
        yield

    async def on_tick(self, counter: int) -> bool:
        """Tell, ten times in a second, whether to end."""
        return await super().on_tick(counter) or self._stop.is_set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what would not end by itself, and then the rest."""
        self._streams.ending.set()
        await super().shutdown(sockets)


async def _listen(settings: HttpSettings) -> socket.socket:
    """A listener at the first address of the host.

    Raises:
        InputError: as `serve`.
    """
    host, port = settings.host, settings.port
    if not 0 <= port <= _LAST_PORT:
        # The resolver would take another one.
        raise InputError(f"--port {port}: a port is at most {_LAST_PORT}")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:
        raise InputError(f"--host: {host}: {_reason(error)}") from error
    family, _, _, _, address = found[0]
    for_others = settings.tokens and settings.own_token is None
    if not for_others and not is_loopback(str(address[0])):
        raise InputError(
            f"--token-file: needed to listen at {host}, where other machines may ask; without a"
            " token --host is an address of the loopback, e.g. 127.0.0.1"
        )
    try:
        listener = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise InputError(
            f"--host {host}, --port {port}: cannot listen there: {_reason(error)}"
        ) from error
    # Connections inherit it. By itself asyncio sets it on those sockets alone whose protocol was
    # named when they were made; without it an answer in two parts waits 40 ms for an ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _reason(error: OSError | UnicodeError) -> str:
    text = error.strerror if isinstance(error, OSError) else None
    return (text or str(error)).lower()


class _ToStructlog(logging.Handler):
    """Passes on what a library logs by the standard module."""

    def emit(self, record: logging.LogRecord) -> None:
        """Log the record's message."""
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            # Of requests that the server itself has cut off, and told so.
            return
        log.log(
            record.levelno,
            "http.server",
            told=record.getMessage(),
            exc_info=record.exc_info or None,
        )


def _log_through_structlog() -> None:
    """Have uvicorn's warnings where ours are; its news of starting and stopping are ours, too."""
    logger = logging.getLogger("uvicorn")
    logger.handlers[:] = [_ToStructlog()]
    logger.propagate = False
    logger.setLevel(logging.WARNING)
