"""Requests in the forms that clients and proxies give them, in the one form that routes know."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_NO_BODY: Final[Message] = {"type": "http.response.body", "body": b"", "more_body": False}


class OneForm:
    """Middleware: a HEAD is answered as a GET without its body, a slash at a path's end is none."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on in the form that routes know."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The server goes by its own scope, which is to say what was asked.
        known = dict(scope)
        if len(scope["path"]) > 1:
            known["path"] = scope["path"].rstrip("/") or "/"
        if scope["method"] == "HEAD":
            known["method"] = "GET"
            send = _HeadAlone(send)
        try:
            await self._app(known, receive, send)
        finally:
            # Which one it was is counted.
            if "route" in known:
                scope["route"] = known["route"]


class _HeadAlone:
    """Sends the head of an answer, and nothing of its body; an event stream ends there, too."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._send(message)
            await self._send(_NO_BODY)
