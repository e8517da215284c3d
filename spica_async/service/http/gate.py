"""Who is let in: with a token, or without one from this machine alone."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from spica_async.service.http.address import host_of, is_loopback
from spica_async.service.http.problems import problem_response
from spica_async.service.http.tokens import Tokens

OPEN_PATHS: Final = frozenset({"/health", "/v1/health", "/ready", "/v1/ready"})
"""For whoever keeps containers alive, who has no token."""


class Gate:
    """Middleware that turns away who may not speak to the daemon, before anything is read."""

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it."""
        app = self._app
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            refusal = self._ask(scope, headers) if self._tokens else _look(headers)
            app = refusal or app
        await app(scope, receive, send)

    def _ask(self, scope: Scope, headers: Headers) -> Response | None:
        if scope["path"] in OPEN_PATHS:
            return None
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # Headers are read as latin-1, so this gives the bytes that were sent.
        if scheme.lower() == "bearer" and self._tokens.accept(token.strip().encode("latin-1")):
            return None
        told = "the token is none of the daemon's" if token else "a token is needed"
        return problem_response(
            HTTPStatus.UNAUTHORIZED,
            f"{told}: Authorization: Bearer TOKEN",
            {"WWW-Authenticate": "Bearer"},
        )


def _look(headers: Headers) -> Response | None:
    """Refuse what a page of the web has its reader's browser ask of this machine."""
    # A name of the page's that was made to mean the loopback shows here (DNS rebinding).
    host = headers.get("host", "")
    if not is_loopback(host_of(host)):
        return problem_response(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"Host: {host!r} is not of this machine; without a token no other is answered",
        )
    # And this is a page that asks for us by our own name, without reading the answer.
    origin = headers.get("origin")
    if origin is not None and not is_loopback(_origin_host(origin)):
        return problem_response(
            HTTPStatus.FORBIDDEN,
            f"Origin: {origin!r} is not of this machine; without a token no other is answered",
        )
    return None


def _origin_host(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
