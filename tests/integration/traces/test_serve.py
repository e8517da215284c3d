"""Traces that a coordinator serves, over loopback."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from structlog.testing import capture_logs
from support.trace_loads import files_in, load_of, open_cache

from schemas.messages import TraceLoad, TraceSource
from spica_async.errors import InputError
from spica_async.traces.serve import TraceServer, address_towards

CONTENT = bytes(range(256)) * 1000


@pytest.fixture
def load(tmp_path: Path) -> TraceLoad:
    path = tmp_path / "trace.jsonl"
    path.write_bytes(CONTENT)
    return load_of(CONTENT, path=path)


@asynccontextmanager
async def serving(
    load: TraceLoad, *, host: str, port: int = 0, advertised_host: str = "", **limits: float
) -> AsyncIterator[TraceSource]:
    """A server for one trace alone."""
    async with (
        TraceServer.open(host, port, **limits) as server,
        server.offering(load, advertised_host=advertised_host or host) as source,
    ):
        yield source


def authorization(source: TraceSource) -> dict[str, str]:
    assert source.token is not None
    return {"Authorization": f"Bearer {source.token.get_secret_value()}"}


def base_of(source: TraceSource) -> str:
    """Scheme, host and port."""
    return source.url.partition("/traces/")[0]


async def test_a_worker_elsewhere_fetches_the_trace(load: TraceLoad, tmp_path: Path) -> None:
    async with serving(load, host="127.0.0.1") as source:
        elsewhere = load.model_copy(update={"path": "/nowhere", "sources": [source]})
        received = TraceLoad.model_validate_json(elsewhere.model_dump_json())
        async with open_cache(tmp_path / "cache").use(received) as path:
            assert path.read_bytes() == CONTENT
    assert list(files_in(tmp_path / "cache")) == [f"{load.sha256}.jsonl"]


async def test_a_range_and_a_head(load: TraceLoad) -> None:
    async with (
        serving(load, host="127.0.0.1") as source,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        url, headers = source.url, authorization(source)
        part = await http.get(url, headers={**headers, "Range": "bytes=256-511"})
        assert part.status_code == 206
        assert part.content == CONTENT[:256]
        head = await http.head(url, headers=headers)
        assert (head.status_code, head.headers["Content-Length"]) == (200, str(len(CONTENT)))
        head = await http.head(url)
        assert head.status_code == 401


@pytest.mark.parametrize(
    "value",
    [None, "", "Bearer", "Bearer wrong", "Bearer \xe4", "Basic {token}", "Bearer {token}x"],
)
async def test_without_the_token_nothing_is_told(load: TraceLoad, value: str | None) -> None:
    async with (
        serving(load, host="127.0.0.1") as source,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        token = authorization(source)["Authorization"].removeprefix("Bearer ")
        given = "" if value is None else value.format(token=token)
        headers = {} if value is None else {b"Authorization": given.encode("latin-1")}
        for url in (source.url, source.url.replace(load.sha256, "0" * 64)):
            response = await http.get(url, headers=headers)
            assert response.status_code == 401
            assert response.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "path",
    ["/traces/" + "0" * 64, "/traces/", "/traces", "/", "/traces/..%2f..%2fetc%2fpasswd", "/etc"],
)
async def test_there_is_nothing_but_the_traces(load: TraceLoad, path: str) -> None:
    async with (
        serving(load, host="127.0.0.1") as source,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        headers = authorization(source)
        response = await http.get(base_of(source) + path, headers=headers)
        assert response.status_code == 404
        response = await http.post(source.url, headers=headers)
        assert response.status_code == 405


CHANGES: dict[str, Callable[[Path], Any]] = {
    "content": lambda path: path.write_bytes(b"something else"),
    "time": lambda path: os.utime(path, (0, 0)),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_trace_that_has_changed_is_gone(load: TraceLoad, change: str) -> None:
    async with (
        serving(load, host="127.0.0.1") as source,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        CHANGES[change](Path(load.path))
        with capture_logs() as logs:
            headers = authorization(source)
            response = await http.get(source.url, headers=headers)
            assert response.status_code == 410
    assert [entry["event"] for entry in logs] == ["coordinator.trace_changed"]


@pytest.fixture
def large(tmp_path: Path) -> TraceLoad:
    """More than the buffers of two sockets hold."""
    path = tmp_path / "large.jsonl"
    path.touch()
    os.truncate(path, 64 * 2**20)
    return load_of(b"").model_copy(update={"path": str(path), "size_bytes": 64 * 2**20})


async def test_a_download_that_stalls_is_cut(
    large: TraceLoad, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(large, host="127.0.0.1", download_seconds=0.2) as source:
        with capture_logs() as logs:
            reader, writer = await _ask(source)
            await until_logged(logs, "coordinator.trace_download_stalled")
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await reader.readexactly(large.size_bytes)
            writer.close()
    assert caplog.records == []


async def test_a_worker_that_goes_in_the_middle_is_no_error(
    large: TraceLoad, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(large, host="127.0.0.1") as source:
        for _ in range(5):
            _, writer = await _ask(source)
            writer.transport.abort()
        async with httpx.AsyncClient(trust_env=False) as http:
            headers = authorization(source)
            for _ in range(2):
                response = await http.get(source.url, headers=headers)
                assert len(response.content) == large.size_bytes
    assert caplog.records == []


async def until_logged(logs: Sequence[Mapping[str, Any]], event: str) -> None:
    while event not in [entry["event"] for entry in logs]:  # noqa: ASYNC110 - a log tells nobody
        await asyncio.sleep(0.01)


async def _ask(
    source: TraceSource,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask for the trace and read no more than the start of the answer."""
    host, port = base_of(source).removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    token = authorization(source)["Authorization"]
    path = source.url.removeprefix(base_of(source))
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {token}\r\n\r\n"
    writer.write(head.encode())
    assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
    return reader, writer


async def test_each_server_has_a_token_of_its_own_that_no_text_shows(load: TraceLoad) -> None:
    with capture_logs() as logs:
        async with (
            serving(load, host="127.0.0.1") as first,
            serving(load, host="127.0.0.1") as second,
        ):
            tokens = [authorization(source)["Authorization"] for source in (first, second)]
            assert tokens[0] != tokens[1]
            shown = f"{logs} {first} {first!r}"
            assert tokens[0].removeprefix("Bearer ") not in shown


async def test_a_trace_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    absent = load_of(CONTENT, path=tmp_path / "absent")
    with pytest.raises(InputError, match=r"^workload\.trace_path: .*/absent: no such file or"):
        async with serving(absent, host="127.0.0.1"):
            pass


async def test_an_address_that_is_taken_is_an_input_error(load: TraceLoad) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where = rf"^--trace-host 127\.0\.0\.1, --trace-port {port}: cannot listen there: address "
        with pytest.raises(InputError, match=where):
            async with serving(load, host="127.0.0.1", port=port):
                pass


async def test_an_unknown_host_is_an_input_error(load: TraceLoad) -> None:
    with pytest.raises(InputError, match=r"^--trace-host: nobody\.invalid: "):
        async with serving(load, host="nobody.invalid"):
            pass


async def test_the_port_is_free_again_afterwards(load: TraceLoad) -> None:
    ports: list[int] = []
    for _ in range(2):
        async with serving(load, host="127.0.0.1", port=ports[0] if ports else 0) as it:
            ports.append(int(base_of(it).rpartition(":")[2]))
    assert ports[0] == ports[1]


@pytest.mark.parametrize(
    ("host", "advertised", "expected"),
    [
        ("127.0.0.1", "127.0.0.1", "http://127.0.0.1:"),
        ("0.0.0.0", "10.1.2.3", "http://10.1.2.3:"),
        ("127.0.0.1", "fd00::1", "http://[fd00::1]:"),
    ],
)
async def test_the_urls_name_the_advertised_host(
    load: TraceLoad, host: str, advertised: str, expected: str
) -> None:
    async with serving(load, host=host, advertised_host=advertised) as source:
        assert source.url.startswith(expected)
        assert source.url.endswith(f"/traces/{load.sha256}")


async def test_a_server_offers_each_trace_to_those_with_its_own_token(
    load: TraceLoad, tmp_path: Path
) -> None:
    (tmp_path / "other.jsonl").write_bytes(b"other")
    other = load_of(b"other", path=tmp_path / "other.jsonl")

    async def status(source: TraceSource, url: str) -> int:
        response = await http.get(url, headers=authorization(source))
        return response.status_code

    async with (
        TraceServer.open("127.0.0.1") as server,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        async with server.offering(load, advertised_host="127.0.0.1") as first:
            async with (
                server.offering(other, advertised_host="127.0.0.1") as second,
                server.offering(load, advertised_host="127.0.0.1") as third,
            ):
                assert base_of(first) == base_of(second) == f"http://127.0.0.1:{server.port}"
                assert first.url == third.url
                assert len({*map(str, map(authorization, (first, second, third)))}) == 3
                for source in (first, second, third):
                    assert await status(source, source.url) == 200
                assert await status(first, second.url) == 404
                assert await status(second, first.url) == 404
            assert await status(first, first.url) == 200
            assert await status(second, second.url) == 401
            assert await status(third, third.url) == 401
        assert await status(first, first.url) == 401


def test_the_address_towards_this_machine_is_its_own() -> None:
    assert address_towards("127.0.0.1", 5672) == "127.0.0.1"
