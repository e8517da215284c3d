"""A daemon behind a proxy that speaks https: what the client says of its certificate, at once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from support.pki import server_context
from support.scripted_http import answer, scripted_server, without_tls

from spica_async.errors import SpicaError
from spica_async.service.client import DaemonClient, DaemonSilentError

EMPTY = answer(json.dumps([]).encode())


async def listed(url: str) -> list[object]:
    def ask() -> list[object]:
        with DaemonClient(url.removesuffix("/trace")) as client:
            return list(client.sweeps(most=1))

    return await asyncio.to_thread(ask)


async def test_a_trusted_daemon_on_this_machine(pki: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pki / "ca.pem"))
    async with scripted_server(EMPTY, tls=server_context(pki)) as server:
        assert await listed(server.url) == []


@pytest.mark.parametrize(
    ("ca", "name", "words"),
    [
        ("stranger.pem", "server", "certificate is not trusted: .*; the variable SSL_CERT_FILE"),
        (
            "ca.pem",
            "elsewhere",
            r"certificate is for another name: .*'127\.0\.0\.1'.*SSL_CERT_FILE",
        ),
        ("ca.pem", "expired", "certificate has expired"),
    ],
)
async def test_a_certificate_that_will_not_do(
    pki: Path, monkeypatch: pytest.MonkeyPatch, ca: str, name: str, words: str
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pki / ca))
    async with scripted_server(EMPTY, tls=server_context(pki, name)) as server:
        with pytest.raises(SpicaError, match=words) as refused:
            await listed(server.url)
    # Which would be asked again for a while.
    assert not isinstance(refused.value, DaemonSilentError)


async def test_a_daemon_without_tls() -> None:
    async with without_tls() as url:
        with pytest.raises(SpicaError, match=r"no TLS is spoken .*http://") as refused:
            await listed(url)
    assert not isinstance(refused.value, DaemonSilentError)
