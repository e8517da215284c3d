"""How a daemon is reached over HTTP, and what it puts up with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry

from spica_async.documents import MOST_BYTES
from spica_async.service.http.address import DEFAULT_HOST, DEFAULT_PORT
from spica_async.service.http.tokens import Tokens
from spica_async.service.local_files import NO_FILE, LocalFiles

MAX_PAGE: Final = 1000
"""Sweeps or candidates in one answer."""
MAX_NUMBER: Final = 2**31 - 1
"""Of an event, or of what a page begins with: PostgreSQL counts so far."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of the application and of its server.

    Attributes:
        host: name or address to listen at; one that is not of the loopback needs a token.
        port: 0 takes any that is free.
        tokens: that are taken; none: everybody on this machine is let in.
        own_token: one of them that is kept in a file for this user's clients; only on the loopback.
        files: which files of this host a submission may name.
        connections: that may be open at a time; one more takes the place of the one that has kept
            the daemon waiting longest, and is turned away where none does.
        head_seconds: how long a connection may take to send the whole head of a request.
        body_bytes: the longest body of a request.
        body_seconds: how long it may take to come.
        streams: event streams that may be open at a time.
        heartbeat_seconds: how often a stream says that it lives.
        stuck_seconds: how long a client may take nothing of what it is answered.
        retry_seconds: what is told to who was turned away for now.
        shutdown_seconds: how long requests may take to end when the server does.
        registry: where to count; none: one of the application's own.
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    tokens: Tokens = field(default_factory=Tokens)
    own_token: str | None = field(default=None, repr=False)
    files: LocalFiles = NO_FILE
    connections: int = 256
    head_seconds: float = 10.0
    body_bytes: int = MOST_BYTES
    body_seconds: float = 30.0
    streams: int = 64
    heartbeat_seconds: float = 15.0
    stuck_seconds: float = 30.0
    retry_seconds: int = 10
    shutdown_seconds: int = 5
    registry: CollectorRegistry | None = None
