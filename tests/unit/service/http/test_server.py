"""The server itself: where it listens, what it puts up with, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import httpx2 as httpx
import pytest
from support.commands import small_sweep
from support.daemon_http import SETTINGS, TOKEN, http_client, running
from support.fake_control import FakeControl, record

from spica_async.documents import MOST_BYTES
from spica_async.errors import InputError

pytestmark = pytest.mark.timeout(30)


async def test_it_answers_over_a_socket(control: FakeControl, sweep_id: str) -> None:
    async with running(control) as url, http_client() as client:
        answer = await client.get(f"{url}/v1/sweeps")

    assert [sweep["sweep_id"] for sweep in answer.json()] == [sweep_id]
    assert "server" not in answer.headers


async def chunks(count: int, sent: list[int]) -> AsyncIterator[bytes]:
    """A body whose length is not announced, and how many of its parts were asked for."""
    for number in range(count):
        sent.append(number)
        yield b"x" * 50_000


@pytest.mark.parametrize("body", [b"x" * (MOST_BYTES + 1), None], ids=["announced", "not"])
async def test_long_bodies_are_refused_whether_announced_or_not(
    control: FakeControl, body: bytes | None
) -> None:
    async with running(control) as url, http_client() as client:
        headers = {"Content-Type": "application/json"}
        content = chunks(100, []) if body is None else body
        answer = await client.post(f"{url}/v1/sweeps", content=content, headers=headers)
        assert answer.status_code == 413
        assert answer.headers["content-type"] == "application/problem+json"
        assert "1,048,576" in answer.json()["detail"]
        assert not control.known


async def test_an_endless_body_is_not_read_to_its_end(control: FakeControl) -> None:
    sent: list[int] = []
    async with running(control) as url, http_client() as client:
        headers = {"Content-Type": "application/json"}
        with pytest.raises((httpx.ReadError, httpx.WriteError)):
            await client.post(f"{url}/v1/sweeps", content=chunks(10_000, sent), headers=headers)
    assert len(sent) < 1000


async def test_a_body_as_long_as_allowed_is_read(control: FakeControl) -> None:
    async with running(control) as url, http_client() as client:
        text = b" " * (MOST_BYTES - 2) + b"{}"
        answer = await client.post(
            f"{url}/v1/sweeps", content=text, headers={"Content-Type": "application/json"}
        )

    assert answer.status_code == 422
    assert answer.json()["detail"] == "config: required"


async def test_others_are_answered_while_a_long_body_is_read(control: FakeControl) -> None:
    text = "goal:\n" + "  - a\n" * 50_000
    async with running(control) as url, http_client() as client:
        headers = {"Content-Type": "application/yaml"}
        slow = asyncio.create_task(client.post(f"{url}/v1/sweeps", content=text, headers=headers))
        await asyncio.sleep(0.2)
        assert (await client.get(f"{url}/health")).status_code == 200
        assert not slow.done()
        assert (await slow).status_code == 422


async def test_it_listens_elsewhere_only_with_a_token_of_its_users(control: FakeControl) -> None:
    own = replace(SETTINGS, host="0.0.0.0", own_token=TOKEN)
    with pytest.raises(InputError, match=r"^--token-file: needed to listen at 0\.0\.0\.0"):
        async with running(control, own):
            pytest.fail("it listens")
    async with running(control, replace(own, own_token=None)) as url:
        port = httpx.URL(url).port
        async with http_client() as client:
            answer = await client.get(f"http://127.0.0.1:{port}/v1/sweeps")
    assert answer.status_code == 200


async def test_a_port_in_use_names_the_option(control: FakeControl) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError) as raised:
            async with running(control, replace(SETTINGS, port=port)):
                pytest.fail("it listens")
    assert str(raised.value).startswith(f"--host 127.0.0.1, --port {port}: cannot listen there: ")
    assert "in use" in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (replace(SETTINGS, host="no.such.host.invalid"), "--host: no.such.host.invalid: "),
        (replace(SETTINGS, host="203.0.113.7"), "--host 203.0.113.7"),
        (replace(SETTINGS, port=70_000), "--port 70000"),
    ],
)
async def test_a_bad_address_names_the_option(
    control: FakeControl, settings: object, words: str
) -> None:
    with pytest.raises(InputError) as raised:
        async with running(control, settings):  # type: ignore[arg-type]  # parametrize loses the type
            pytest.fail("it listens")
    assert words in str(raised.value)


async def test_leaving_ends_open_streams_in_good_order(control: FakeControl, sweep_id: str) -> None:
    async def listen(client: httpx.AsyncClient, url: str) -> None:
        async with client.stream("GET", url) as answer:
            # Raises where the answer is broken off.
            await answer.aread()

    async with http_client(timeout=20) as client:
        async with running(control) as url:
            paths = [f"{url}/v1/events", f"{url}/v1/sweeps/{sweep_id}/events"]
            listening = [asyncio.create_task(listen(client, path)) for path in paths]
            await control.listened(2)
            began = time.monotonic()
        assert time.monotonic() - began < 3
        await asyncio.gather(*listening)
        assert control.listeners == 0
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{url}/health")


async def test_setting_stop_ends_it(control: FakeControl) -> None:
    stop = asyncio.Event()
    async with running(control, stop=stop) as url, http_client() as client:
        assert (await client.get(f"{url}/health")).status_code == 200
        stop.set()
        while True:
            try:
                await client.get(f"{url}/health")
            except httpx.TransportError:
                break
            await asyncio.sleep(0.02)


async def test_an_answer_that_never_comes_does_not_keep_it(
    control: FakeControl,
    monkeypatch: pytest.MonkeyPatch,
    logged: list[MutableMapping[str, Any]],
) -> None:
    asked = asyncio.Event()

    async def never() -> list[str]:
        asked.set()
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(control, "troubles", never)
    began = time.monotonic()
    async with http_client(timeout=20) as client:
        async with running(control, shutdown_seconds=1) as url:
            asking = asyncio.create_task(client.get(f"{url}/ready"))
            await asked.wait()
        assert time.monotonic() - began < 5
        assert (await asking).status_code == 500
    messages = [entry["message"] for entry in logged if entry["event"] == "http.server"]
    assert messages == ["Cancel 1 running task(s), timeout graceful shutdown exceeded"]


async def test_an_error_of_the_caller_is_raised_as_it_is(control: FakeControl) -> None:
    with pytest.raises(ZeroDivisionError):
        async with running(control):
            raise ZeroDivisionError


async def test_a_server_that_fails_says_so(
    control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    import uvicorn

    async def fails(*_: object) -> bool:
        raise RuntimeError("broken")

    monkeypatch.setattr(uvicorn.Server, "on_tick", fails)
    stop = asyncio.Event()
    with pytest.raises(RuntimeError, match="broken"):
        async with running(control, stop=stop):
            await stop.wait()


async def test_signals_and_the_root_logger_are_left_alone(
    control: FakeControl, capfd: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    handlers = list(logging.getLogger().handlers)
    async with running(control) as url, http_client() as client:
        await client.get(f"{url}/health")
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        assert logging.getLogger().handlers == handlers
    captured = capfd.readouterr()
    assert "Uvicorn" not in captured.out + captured.err
    assert "GET /" not in captured.out + captured.err


async def test_two_servers_live_side_by_side(control: FakeControl) -> None:
    other = FakeControl()
    async with (
        running(control) as one,
        running(other) as two,
        http_client() as client,
    ):
        await client.post(f"{one}/v1/sweeps", json={"config": small_sweep()})
        assert len((await client.get(f"{one}/v1/sweeps")).json()) == 1
        assert (await client.get(f"{two}/v1/sweeps")).json() == []


@asynccontextmanager
async def connected(
    url: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection whose every byte is ours."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
    yield reader, writer
    writer.close()


def head(method: str, path: str, *fields: str) -> bytes:
    """Of a request that shows a token."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {TOKEN}", *fields]
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.mark.parametrize("sent", [b"{", b""])
async def test_a_body_that_does_not_come_is_not_waited_for(
    control: FakeControl, sent: bytes
) -> None:
    settings = replace(SETTINGS, body_seconds=0.3)
    fields = ("Content-Type: application/json", "Content-Length: 100")
    async with running(control, settings) as url, connected(url) as (reader, writer):
        writer.write(head("POST", "/v1/sweeps", *fields) + sent)
        answer = await reader.read()

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the request's body has not come within 0.3 s" in answer
    assert not control.known


@pytest.fixture
def long_page(control: FakeControl, sweep_id: str) -> bytes:
    """A request whose answer of 20 MB is more than the buffers of both sides hold."""
    large = record().model_copy(update={"detail": "x" * 20_000})
    control.known[sweep_id].records = [large] * 1000
    return head("GET", f"/v1/sweeps/{sweep_id}/candidates?limit=1000", "Connection: close")


async def test_a_client_that_takes_no_answer_is_left(
    control: FakeControl, long_page: bytes
) -> None:
    async with running(control, stuck_seconds=0.3) as url, connected(url) as (reader, writer):
        writer.write(long_page)
        assert await reader.readline() == b"HTTP/1.1 200 OK\r\n"
        await asyncio.sleep(1)
        taken = 0
        with suppress(ConnectionResetError):
            while part := await reader.read(1_000_000):
                taken += len(part)
        assert taken < 20_000_000


async def test_a_client_that_takes_an_answer_slowly_gets_it_all(
    control: FakeControl, long_page: bytes
) -> None:
    async with running(control, stuck_seconds=0.5) as url, connected(url) as (reader, writer):
        writer.write(long_page)
        for _ in range(10):
            await reader.readexactly(1_900_000)
            await asyncio.sleep(0.1)
        assert len(await reader.read()) > 1_000_000


async def test_there_are_only_so_many_connections(control: FakeControl) -> None:
    settings = replace(SETTINGS, connections=3)
    async with running(control, settings) as url, http_client() as client:
        async with (
            client.stream("GET", f"{url}/v1/events"),
            client.stream("GET", f"{url}/v1/events"),
        ):
            await control.listened(2)
            refused = await client.get(f"{url}/health")
        await control.listened(0)
        assert (await client.get(f"{url}/health")).status_code == 200
    assert refused.status_code == 503
