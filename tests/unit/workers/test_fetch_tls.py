"""Traces behind https: what the worker says of a certificate, and that it says so at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.pki import server_context
from support.scripted_http import answer, scripted_server, without_tls
from support.trace_loads import load_of, open_cache

from workers.traces import TraceCache, TraceUnavailableError

CONTENT = b"a trace"


async def read(cache: TraceCache, url: str) -> bytes:
    async with cache.use(load_of(CONTENT, sources=[url])) as path:
        return path.read_bytes()


Trust = Callable[[str], None]


@pytest.fixture
def trust(pki: Path, monkeypatch: pytest.MonkeyPatch) -> Trust:
    """Has the certificates in a file trusted, as a user does."""

    def begin(ca: str) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(pki / ca))

    return begin


async def test_a_trusted_source(tmp_path: Path, pki: Path, trust: Trust) -> None:
    trust("ca.pem")
    async with scripted_server(answer(CONTENT), tls=server_context(pki)) as server:
        assert await read(open_cache(tmp_path), server.url) == CONTENT


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("stranger.pem server", "certificate is not trusted: .*; the variable SSL_CERT_FILE"),
        ("ca.pem elsewhere", r"certificate is for another name: .*'127\.0\.0\.1'.*SSL_CERT_FILE"),
        ("ca.pem expired", "certificate has expired"),
    ],
)
async def test_a_certificate_that_will_not_do(
    tmp_path: Path, pki: Path, trust: Trust, case: str, words: str
) -> None:
    ca, name = case.split()
    trust(ca)
    async with scripted_server(answer(CONTENT), tls=server_context(pki, name)) as server:
        # A second attempt would wait for a minute.
        cache = TraceCache(tmp_path, pause_seconds=60)
        with pytest.raises(TraceUnavailableError, match=words):
            await read(cache, server.url)
    assert server.requests == []


async def test_a_source_without_tls(tmp_path: Path) -> None:
    async with without_tls() as url:
        cache = TraceCache(tmp_path, pause_seconds=60)
        with pytest.raises(TraceUnavailableError, match=r"no TLS is spoken .*http://"):
            await read(cache, url)
