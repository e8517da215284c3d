"""Only addresses of the schemes that a worker is allowed to fetch are ever asked for anything."""

from __future__ import annotations

from pathlib import Path

import fsspec  # type: ignore[import-untyped]  # no types are published for it
import pytest
from support.pki import server_context
from support.scripted_http import answer, answer_until_close, scripted_server
from support.trace_loads import load_of, open_cache

from spica_async.errors import InputError
from spica_async.traces.sources import DEFAULT_SCHEMES, read_schemes
from workers.traces import TraceUnavailableError

CONTENT = b"a trace"


async def problem_of(folder: Path, url: str, schemes: tuple[str, ...] = DEFAULT_SCHEMES) -> str:
    load = load_of(CONTENT, sources=[url])
    with pytest.raises(TraceUnavailableError) as caught:
        async with open_cache(folder / "cache", schemes=schemes).use(load):
            pass
    return str(caught.value).partition("no such file or directory; ")[2]


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("file://{}", "file://"),
        ("FILE://{}", "file://"),
        ("local://{}", "local://"),
        ("{}", "an address without a scheme"),
        ("file:{}", "an address without a scheme"),
        ("s3:{}", "an address without a scheme"),
        ("ftp://127.0.0.1/trace", "ftp://"),
        ("memory://trace", "memory://"),
        ("github://org:repo@main/trace", "github://"),
        ("data:,a%20trace", "an address without a scheme"),
    ],
)
async def test_what_is_not_allowed_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, what: str
) -> None:
    here = tmp_path / "trace"
    here.write_bytes(CONTENT)
    opened: list[str] = []
    monkeypatch.setattr(fsspec, "open", lambda url, _: opened.append(url))
    problem = await problem_of(tmp_path, url.format(here))
    assert problem.endswith(
        f": {what} is not fetched here: --trace-schemes allows http, https, s3, gs"
    )
    assert opened == []


async def test_what_is_allowed_is_opened(tmp_path: Path) -> None:
    here = tmp_path / "trace"
    here.write_bytes(CONTENT)
    load = load_of(CONTENT, sources=[f"file://{here}"])
    async with open_cache(tmp_path / "cache", schemes=("file",)).use(load) as path:
        assert path.read_bytes() == CONTENT


def redirect(location: str) -> bytes:
    return answer_until_close(b"", f"302 Found\r\nLocation: {location}\r\nContent-Length: 0")


@pytest.mark.parametrize("scheme", ["file", "ftp", "memory", "s3"])
async def test_a_redirect_leads_to_no_other_scheme(tmp_path: Path, scheme: str) -> None:
    """Nor to one that is allowed where a request names it."""
    async with scripted_server(redirect(f"{scheme}:///etc/passwd")) as server:
        problem = await problem_of(tmp_path, server.url)
    assert problem == f"{server.url}: it redirects to {scheme}://"
    assert len(server.requests) == 1


async def test_a_redirect_does_not_leave_encryption(
    tmp_path: Path, pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(pki / "ca.pem"))
    async with (
        scripted_server(answer(CONTENT)) as plain,
        scripted_server(redirect(plain.url), tls=server_context(pki)) as server,
    ):
        problem = await problem_of(tmp_path, server.url, schemes=("https",))
    assert "it redirects, and http:// is not fetched here: --trace-schemes allows https" in problem
    assert plain.requests == []


async def test_a_redirect_within_what_is_allowed(tmp_path: Path) -> None:
    async with (
        scripted_server(answer(CONTENT)) as there,
        scripted_server(redirect("/elsewhere"), redirect(there.url)) as server,
    ):
        load = load_of(CONTENT, sources=[server.url])
        async with open_cache(tmp_path, schemes=("http",)).use(load) as path:
            assert path.read_bytes() == CONTENT


def test_a_list_of_schemes() -> None:
    assert read_schemes("HTTPS, s3,abfs") == ("https", "s3", "abfs")
    for wrong in ("", "https,", "https://", "s3 gs", "s3;gs"):
        with pytest.raises(InputError, match=r"^--trace-schemes: "):
            read_schemes(wrong)
