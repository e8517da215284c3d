"""Middleware before the routes: it checks tokens, and normalises methods and paths."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spica_async.service.http.problems import problem_response
from spica_async.service.http.tokens import Tokens

_OPEN_PATHS: Final = frozenset({"/health", "/v1/health", "/ready", "/v1/ready"})
"""For what keeps containers alive, which has no token."""
_NO_BODY: Final[Message] = {"type": "http.response.body", "body": b"", "more_body": False}


class TokenCheck:
    """Answers a request that shows no token of the daemon's, before anything of it is read."""

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request pass, or answer it."""
        app = self._app
        if scope["type"] == "http" and scope["path"] not in _OPEN_PATHS:
            shown = Headers(scope=scope).get("authorization", "")
            if not self._tokens.open_to(shown):
                token = shown.partition(" ")[2]
                problem = "the token is none of the daemon's" if token else "a token is needed"
                app = problem_response(
                    HTTPStatus.UNAUTHORIZED,
                    f"{problem}: Authorization: Bearer TOKEN",
                    {"WWW-Authenticate": "Bearer"},
                )
        await app(scope, receive, send)


class OneForm:
    """Answers a HEAD as a GET without its body; a slash at the end of a path means nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on in the form that routes know."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The server goes by its own scope, which keeps what the client has sent.
        known = dict(scope)
        if len(scope["path"]) > 1:
            known["path"] = scope["path"].rstrip("/") or "/"
        answer = send
        if scope["method"] == "HEAD":
            known["method"] = "GET"

            async def answer(message: Message) -> None:
                # An event stream ends with its head, too.
                if message["type"] == "http.response.start":
                    await send(message)
                    await send(_NO_BODY)

        try:
            await self._app(known, receive, answer)
        finally:
            # For the metrics, which count by route.
            if "route" in known:
                scope["route"] = known["route"]
