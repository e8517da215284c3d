"""A daemon's HTTP application around a `FakeControl`, in this process or behind a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import httpx2 as httpx
from support.fake_control import FakeControl

from spica_async.service.http.app import make_app
from spica_async.service.http.server import serve
from spica_async.service.http.settings import HttpSettings
from spica_async.service.http.tokens import Tokens
from spica_async.service.local_files import ANY_FILE

TOKEN = "0123456789abcdef-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
OPEN = HttpSettings(port=0, files=ANY_FILE)
GUARDED = HttpSettings(port=0, tokens=Tokens.of(["another-token-of-ours", TOKEN]))


@asynccontextmanager
async def asking(
    control: FakeControl, settings: HttpSettings = OPEN
) -> AsyncIterator[httpx.AsyncClient]:
    """A client that calls the application directly."""
    transport = httpx.ASGITransport(make_app(control, settings), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8265") as client:
        yield client


@asynccontextmanager
async def running(
    control: FakeControl, settings: HttpSettings = OPEN, *, stop: asyncio.Event | None = None
) -> AsyncIterator[str]:
    """The URL of a real server."""
    fresh = replace(settings)
    async with serve(make_app(control, fresh), fresh, stop or asyncio.Event()) as url:
        yield url
