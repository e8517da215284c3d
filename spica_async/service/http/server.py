"""Serves the daemon's application, and keeps its token in a file for its user's clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing

import structlog
from fastapi import FastAPI

from spica_async.addresses import base_url, is_loopback, listen
from spica_async.errors import InputError
from spica_async.http_server import serving
from spica_async.service.http.settings import HttpSettings
from spica_async.service.http.tokens import kept_token

log = structlog.get_logger(__name__)


@asynccontextmanager
async def serve(
    app: FastAPI,
    settings: HttpSettings,
    stop: asyncio.Event,
    *,
    shutdown_seconds: int = 5,
    stuck_seconds: float = 30.0,
) -> AsyncIterator[str]:
    """Serve as long as the context is open and `stop` is not set; yields the URL.

    Then nobody new is let in, event streams end, and other requests have some seconds to come to
    their end. Leaving the context sets `stop`, and so does a server that fails.

    Args:
        app: made by `make_app` with the same settings and the same `stop`.
        settings: the address to listen at.
        stop: set by anybody to end the serving.
        shutdown_seconds: how long requests may take to end then.
        stuck_seconds: how long a client may take nothing of its answer.

    Raises:
        InputError: the address cannot be listened at, or may not without a token of the user's;
            the message names the options `--host`, `--port`, `--token-file`. Or the daemon's own
            token cannot be kept.
    """
    with ExitStack() as stack:
        # The server closes it, too, unless it has failed.
        listener = stack.enter_context(closing(await listen(settings.host, settings.port)))
        # Then the system breaks the connection off.
        stuck = round(stuck_seconds * 1000)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stuck)
        address, port = listener.getsockname()[:2]
        if settings.own_token is not None:
            if not is_loopback(address):
                raise InputError(
                    f"--token-file: needed to listen at {settings.host}, where other machines may"
                    " ask; without a token --host is an address of the loopback, e.g. 127.0.0.1"
                )
            # Before anybody is answered, so that clients find it as soon as they need it.
            path = stack.enter_context(kept_token(settings.own_token, address, port))
            log.info("http.token_kept", file=str(path))
        url = base_url(settings.host, port)
        async with serving(
            app,
            listener,
            stop,
            shutdown_seconds=shutdown_seconds,
            connections=settings.connections,
        ):
            log.info("http.serving", url=url)
            yield url
