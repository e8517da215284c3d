"""A daemon's HTTP application around a `FakeControl`, in this process or behind a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any

import httpx2 as httpx
from support.fake_control import FakeControl
from tenacity import wait_random

from spica_async.config.submission import ANY_FILE
from spica_async.service.client import DaemonClient
from spica_async.service.http.app import make_app
from spica_async.service.http.server import serve
from spica_async.service.http.settings import HttpSettings
from spica_async.service.http.tokens import Tokens

TOKEN = "0123456789abcdef-token"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
SETTINGS = HttpSettings(Tokens.of(["another-token-of-ours", TOKEN]), port=0, files=ANY_FILE)


@asynccontextmanager
async def asking(
    control: FakeControl,
    settings: HttpSettings = SETTINGS,
    *,
    headers: Mapping[str, str] = MappingProxyType(BEARER),
) -> AsyncIterator[httpx.AsyncClient]:
    """A client that calls the application directly, with its token unless another is given."""
    app = make_app(control, settings, asyncio.Event())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1:8265", headers=headers
    ) as client:
        yield client


@asynccontextmanager
async def running(
    control: FakeControl,
    settings: HttpSettings = SETTINGS,
    *,
    stop: asyncio.Event | None = None,
    **limits: Any,
) -> AsyncIterator[str]:
    """The URL of a real server; its limits are those of `serve`."""
    stop = stop or asyncio.Event()
    app = make_app(control, settings, stop)
    async with serve(app, settings, stop, **limits) as url:
        yield url


def http_client(**options: Any) -> httpx.AsyncClient:
    """A client that shows a token of the daemon's."""
    return httpx.AsyncClient(headers=BEARER, **options)


def daemon_client(url: str, **options: Any) -> DaemonClient:
    """Likewise, as the commands have it."""
    return DaemonClient(url, TOKEN, **{"pauses": wait_random(0, 0.01), **options})
