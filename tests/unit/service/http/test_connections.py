"""Connections that keep the daemon waiting are ended, and there are only so many of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2 as httpx
import pytest
from support.commands import small_sweep
from support.daemon_http import OPEN, running
from support.fake_control import FakeControl, record

from schemas.lifecycle import SweepStarted

pytestmark = pytest.mark.timeout(30)

HEAD = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
SUBMIT = b"POST /v1/sweeps HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


class Raw:
    """A connection whose every byte is ours."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def all(self, seconds: float = 5) -> bytes:
        """What comes until the other side closes."""
        async with asyncio.timeout(seconds):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""

    async def answer(self) -> bytes:
        """The head of an answer."""
        async with asyncio.timeout(5):
            return await self._reader.readuntil(b"\r\n\r\n")

    async def part(self, length: int) -> None:
        """Take some of an answer's body."""
        async with asyncio.timeout(5):
            await self._reader.readexactly(length)

    async def ask(self) -> bytes:
        """The status of a healthy daemon."""
        self.writer.write(HEAD)
        status = (await self.answer()).split(b"\r\n")[0]
        await self._reader.readexactly(len(b'{"status":"ok"}'))
        return status


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
    yield Raw(reader, writer)
    writer.close()


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        HEAD[:20],
        # Both have been answered, which ends neither what follows nor a body.
        HEAD + HEAD[:20],
        b"POST /v1/sweeps/x/cancel HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx",
    ],
    ids=["nothing", "half a head", "half a second head", "half a body that nobody reads"],
)
async def test_who_keeps_it_waiting_is_ended(control: FakeControl, sent: bytes) -> None:
    async with running(control, replace(OPEN, head_seconds=0.3)) as url, connected(url) as one:
        began = time.monotonic()
        one.writer.write(sent)
        await one.all()
        assert 0.25 < time.monotonic() - began < 3


async def test_a_head_that_comes_by_and_by_has_no_more_time(control: FakeControl) -> None:
    async with running(control, replace(OPEN, head_seconds=0.5)) as url, connected(url) as one:
        ending = asyncio.create_task(one.all())
        for byte in HEAD[:-1] * 3:
            one.writer.write(bytes([byte]))
            await asyncio.sleep(0.05)
            if ending.done():
                break
        assert ending.done()
        assert await ending == b""


async def test_a_connection_may_be_used_for_longer_than_one_head_may_take(
    control: FakeControl,
) -> None:
    async with running(control, replace(OPEN, head_seconds=0.5)) as url, connected(url) as one:
        for _ in range(8):
            assert await one.ask() == b"HTTP/1.1 200 OK"
            await asyncio.sleep(0.15)


async def test_an_answer_that_takes_longer_is_waited_for(
    control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow() -> list[str]:
        await asyncio.sleep(0.6)
        return []

    monkeypatch.setattr(control, "troubles", slow)
    async with (
        running(control, replace(OPEN, head_seconds=0.2)) as url,
        httpx.AsyncClient() as client,
    ):
        assert (await client.get(f"{url}/ready")).status_code == 200


async def test_event_streams_are_not_cut(control: FakeControl, sweep_id: str) -> None:
    settings = replace(OPEN, head_seconds=0.2, stuck_seconds=0.2, body_seconds=0.2)
    async with (
        running(control, settings) as url,
        httpx.AsyncClient() as client,
        client.sse(f"{url}/v1/events") as source,
    ):
        await asyncio.sleep(0.8)
        await control.tell(sweep_id, SweepStarted(run=1))
        assert (await anext(aiter(source))).event == "sweep.started"


@pytest.mark.parametrize("head", [b"Content-Length: 100\r\n\r\n{", b"Content-Length: 100\r\n\r\n"])
async def test_a_body_that_does_not_come_is_not_waited_for(
    control: FakeControl, head: bytes
) -> None:
    async with running(control, replace(OPEN, body_seconds=0.3)) as url, connected(url) as one:
        one.writer.write(SUBMIT + head)
        answer = await one.all()

    assert answer.startswith(b"HTTP/1.1 408 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["detail"] == (
        "the request's body has not come within 0.3 s"
    )
    assert not control.known


async def test_a_body_that_comes_by_and_by_is_read(control: FakeControl) -> None:
    body = json.dumps({"config": small_sweep()}).encode()
    settings = replace(OPEN, head_seconds=0.2, body_seconds=5)
    async with running(control, settings) as url, connected(url) as one:
        one.writer.write(SUBMIT + b"Content-Length: %d\r\n\r\n" % len(body))
        half = len(body) // 2
        for part in (body[:half], body[half:]):
            await asyncio.sleep(0.3)
            one.writer.write(part)
        assert (await one.answer()).startswith(b"HTTP/1.1 201 ")


@pytest.fixture
def long_page(control: FakeControl, sweep_id: str) -> str:
    """The path of an answer of 20 MB, which is more than the buffers of both sides hold."""
    large = record().model_copy(update={"detail": "x" * 20_000})
    control.known[sweep_id].records = [large] * 1000
    return f"/v1/sweeps/{sweep_id}/candidates?limit=1000"


async def test_who_takes_no_answer_is_ended(control: FakeControl, long_page: str) -> None:
    async with running(control, replace(OPEN, stuck_seconds=0.3)) as url, connected(url) as one:
        one.writer.write(f"GET {long_page} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert (await one.answer()).startswith(b"HTTP/1.1 200 ")
        await asyncio.sleep(1.5)
        assert len(await one.all()) < 20_000_000


async def test_who_takes_an_answer_slowly_gets_it_all(control: FakeControl, long_page: str) -> None:
    settings = replace(OPEN, stuck_seconds=0.3, head_seconds=0.3)
    async with running(control, settings) as url, connected(url) as one:
        one.writer.write(f"GET {long_page} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = (await one.answer()).decode().lower()
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        began = time.monotonic()
        for _ in range(20):
            await one.part(length // 20)
            await asyncio.sleep(0.1)
        assert time.monotonic() - began > 4 * settings.stuck_seconds


async def test_one_more_takes_the_place_of_who_has_been_waited_for_longest(
    control: FakeControl, logged: list[MutableMapping[str, Any]]
) -> None:
    async with (
        running(control, replace(OPEN, connections=3)) as url,
        httpx.AsyncClient() as client,
        client.stream("GET", f"{url}/v1/events") as stream,
        connected(url) as first,
        connected(url) as second,
    ):
        assert stream.status_code == 200
        # Now it has been waited for only since then, and the other is the first.
        assert await first.ask() == b"HTTP/1.1 200 OK"
        async with connected(url) as third:
            assert await third.ask() == b"HTTP/1.1 200 OK"
            assert await second.all() == b""
            assert await first.ask() == b"HTTP/1.1 200 OK"
        assert control.listeners == 1
    assert [entry["event"] for entry in logged].count("http.full") == 1


async def test_where_nobody_can_make_room_one_more_is_told_so(control: FakeControl) -> None:
    settings = replace(OPEN, connections=2)
    async with running(control, settings) as url, httpx.AsyncClient() as client:
        async with (
            client.stream("GET", f"{url}/v1/events"),
            client.stream("GET", f"{url}/v1/events"),
        ):
            await control.listened(2)
            refused = await client.get(f"{url}/health")
            assert control.listeners == 2
        await control.listened(0)
        assert (await client.get(f"{url}/health")).status_code == 200

    assert refused.status_code == 503
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["retry-after"] == str(settings.retry_seconds)
    assert refused.json()["detail"] == "2 connections are open, which is as many as may be"


async def test_a_flood_of_silent_connections_keeps_nobody_out(control: FakeControl) -> None:
    async with running(control, replace(OPEN, connections=8)) as url:
        flood = [
            await asyncio.open_connection("127.0.0.1", httpx.URL(url).port) for _ in range(100)
        ]
        async with httpx.AsyncClient() as client:
            for path in ("/health", "/ready", "/v1/sweeps"):
                assert (await client.get(url + path)).status_code == 200
        async with asyncio.timeout(5):
            # Those that were ended; the last ones are still waited for.
            await asyncio.gather(*(reader.read() for reader, _ in flood[:92]))
        for _, writer in flood:
            writer.close()
