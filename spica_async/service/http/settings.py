"""How a daemon is reached over HTTP, and how much it takes in."""

from __future__ import annotations

from dataclasses import dataclass, field

from spica_async.config.submission import NO_FILE, LocalFiles
from spica_async.service.http import DEFAULT_HOST, DEFAULT_PORT
from spica_async.service.http.tokens import Tokens


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Settings of the application and of its server.

    Attributes:
        tokens: one of which each request has to show.
        own_token: one of them that is kept in a file for this user's clients; only on the loopback.
        host: name or address to listen at.
        port: 0 takes any that is free.
        files: files of this host that a submission may name.
        connections: open ones from which on requests are answered with 503.
        streams: event streams that may be open at a time.
        body_seconds: how long the body of a request may take to come.
    """

    tokens: Tokens
    own_token: str | None = field(default=None, repr=False)
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    files: LocalFiles = NO_FILE
    connections: int = 256
    streams: int = 64
    body_seconds: float = 30.0
