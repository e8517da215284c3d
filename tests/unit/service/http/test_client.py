"""What the client does where a daemon answers late, breaks off, or never publishes an end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx2 as httpx
import pytest
from support.commands import small_sweep
from support.daemon_http import daemon_client, running
from support.fake_control import FakeControl, record
from support.results import RESULT
from support.scripted_http import scripted_server

from schemas.config import SmartSearchConfig
from schemas.daemon import SweepSubmission, SweepSummary
from schemas.lifecycle import (
    CandidateMeasured,
    SweepEvent,
    SweepFailed,
    SweepFinished,
    SweepStarted,
)
from spica_async.service.client import DaemonSilentError
from spica_async.service.following import follow
from spica_async.service.port import SweepPage, UnreadableEvent

pytestmark = pytest.mark.timeout(30)

SUBMISSION = SweepSubmission(config=small_sweep())
IMPATIENT = httpx.Timeout(5.0, read=0.3)
Behaviour = Callable[[int, asyncio.StreamWriter], Awaitable[None]]


class Flaky:
    """A daemon whose every connection goes as a test likes; it takes in what it has read.

    Attributes:
        keys: that it was given, in their order.
        summary: of the sweep that it has made.
        talking: its connections.
    """

    def __init__(self, behaviour: Behaviour, summary: SweepSummary) -> None:
        self.keys: list[str] = []
        self.summary = summary
        self.talking: set[asyncio.Task[None]] = set()
        self._behaviour = behaviour

    def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.talking.add(asyncio.create_task(self._talk(reader, writer)))

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
        await reader.readexactly(int(fields["content-length"]))
        self.keys.append(fields["idempotency-key"])
        await self._behaviour(len(self.keys), writer)
        if not writer.is_closing():
            body = self.summary.model_dump_json().encode()
            writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()


async def late(number: int, _: asyncio.StreamWriter) -> None:
    """The first answer comes when nobody waits for it any more."""
    if number == 1:
        await asyncio.sleep(0.5)


async def broken(number: int, writer: asyncio.StreamWriter) -> None:
    """The first connection breaks when all was read."""
    if number == 1:
        writer.transport.abort()


async def broken_in_its_answer(number: int, writer: asyncio.StreamWriter) -> None:
    if number == 1:
        writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 500\r\n\r\n{")
        writer.close()


async def always_broken(_: int, writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.fixture
async def summary() -> SweepSummary:
    config = SmartSearchConfig.model_validate(small_sweep())
    return await FakeControl().submit(config, priority=0, use_cache=True)


@asynccontextmanager
async def flaky(behaviour: Behaviour, summary: SweepSummary) -> AsyncIterator[tuple[Flaky, str]]:
    daemon = Flaky(behaviour, summary)
    async with await asyncio.start_server(daemon.talk, "127.0.0.1", 0) as server:
        yield daemon, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*daemon.talking)


async def submit(url: str) -> SweepSummary:
    def send() -> SweepSummary:
        with daemon_client(url, submit_timeout=IMPATIENT) as client:
            return client.submit(SUBMISSION)

    return await asyncio.to_thread(send)


@pytest.mark.parametrize("behaviour", [late, broken, broken_in_its_answer])
async def test_what_was_not_answered_is_submitted_again_under_the_same_name(
    behaviour: Behaviour, summary: SweepSummary
) -> None:
    async with flaky(behaviour, summary) as (daemon, url):
        assert await submit(url) == summary

    assert len(daemon.keys) == 2
    assert len(set(daemon.keys)) == 1


async def test_each_submission_has_a_name_of_its_own(summary: SweepSummary) -> None:
    async def at_once(*_: object) -> None: ...

    async with flaky(at_once, summary) as (daemon, url):
        await submit(url)
        await submit(url)

    assert len(set(daemon.keys)) == 2


async def test_it_gives_up_and_says_that_there_may_be_a_sweep(summary: SweepSummary) -> None:
    async with flaky(always_broken, summary) as (daemon, url):
        with pytest.raises(
            DaemonSilentError, match=r"may have taken the sweep in: see spica-async"
        ):
            await submit(url)

    assert Counter(daemon.keys).most_common() == [(daemon.keys[0], 7)]


async def test_nobody_there_is_reported_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(DaemonSilentError) as raised:
        await submit("http://127.0.0.1:1")

    assert time.monotonic() - began < 1
    assert "may have taken" not in str(raised.value)


async def test_a_refusal_is_an_answer(control: FakeControl) -> None:
    control.capacity = 0
    began = time.monotonic()
    async with running(control) as url:
        with pytest.raises(DaemonSilentError, match="as many as may"):
            await submit(url)
    assert time.monotonic() - began < 3


async def test_too_many_connections_are_worth_another_try() -> None:
    answers = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 4\r\n\r\nbusy"

    def ask(url: str) -> None:
        with daemon_client(url) as client:
            client.sweep("x")

    async with scripted_server(answers) as server:
        with pytest.raises(DaemonSilentError, match="answered 503"):
            await asyncio.to_thread(ask, server.url.removesuffix("/trace"))


def followed(url: str, sweep_id: str, quiet_seconds: float = 0.3) -> list[str]:
    """The kinds of all events until the sweep has ended."""
    heard: list[str] = []
    with daemon_client(url) as client:
        events = follow(client, sweep_id, lambda _: None, quiet_seconds=quiet_seconds)
        heard.extend(event.data.kind for event in events)
    return heard


@pytest.fixture
def lively(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams send a sign of life ten times a second."""
    monkeypatch.setattr("fastapi.routing._PING_INTERVAL", 0.1)


@pytest.mark.usefixtures("lively")
@pytest.mark.parametrize("state", ["failed", "interrupted"])
async def test_an_end_that_is_never_published_ends_a_watch(
    control: FakeControl, sweep_id: str, state: str
) -> None:
    control.change(sweep_id, state="running")
    async with running(control) as url:
        watching = asyncio.create_task(asyncio.to_thread(followed, url, sweep_id))
        await control.listened()
        await control.publish(sweep_id, SweepStarted(run=1))
        control.change(sweep_id, state=state)
        async with asyncio.timeout(10):
            assert await watching == ["sweep.submitted", "sweep.started"]
        await control.listened(0)


@pytest.mark.usefixtures("lively")
async def test_so_does_one_from_before_the_watch(control: FakeControl, sweep_id: str) -> None:
    await control.publish(sweep_id, SweepStarted(run=1), state="failed")
    async with running(control) as url, asyncio.timeout(10):
        heard = await asyncio.to_thread(followed, url, sweep_id)

    assert heard == ["sweep.submitted", "sweep.started"]


@pytest.mark.usefixtures("lively")
async def test_silence_alone_ends_no_watch(control: FakeControl, sweep_id: str) -> None:
    control.change(sweep_id, state="running")
    async with running(control) as url:
        watching = asyncio.create_task(asyncio.to_thread(followed, url, sweep_id))
        await control.listened()
        await control.looked_at(3)
        assert not watching.done()
        await control.publish(sweep_id, CandidateMeasured(candidate=record(2)))
        await control.publish(sweep_id, SweepFailed(reason="the engine broke"))
        async with asyncio.timeout(10):
            heard = await watching

    assert heard == ["sweep.submitted", "candidate.measured", "sweep.failed"]
    # It was always the same connection.
    assert control.asked_after == [0]


@pytest.mark.usefixtures("lively")
async def test_an_end_whose_event_comes_late_is_shown(control: FakeControl, sweep_id: str) -> None:
    control.change(sweep_id, state="running")
    async with running(control) as url:
        watching = asyncio.create_task(asyncio.to_thread(followed, url, sweep_id, 0.5))
        await control.listened()
        control.change(sweep_id, state="failed")
        # Once is not enough to end it; the event comes before the third look.
        await control.looked_at(2)
        await control.publish(sweep_id, SweepFailed(reason="the engine broke"))
        async with asyncio.timeout(10):
            heard = await watching

    assert heard[-1] == "sweep.failed"


async def test_a_list_of_many_comes_in_pages(
    control: FakeControl, sweep_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    page = control.sweeps

    async def sweeps(*args: Any, limit: int, **kwargs: Any) -> SweepPage:
        asked.append(limit)
        # One more is submitted between any two pages.
        add(f"newer-{len(asked)}")
        return await page(*args, limit=limit, **kwargs)

    def add(name: str) -> None:
        one = control.known[sweep_id]
        control.known[name] = replace(one, detail=one.detail.model_copy(update={"sweep_id": name}))

    def some(url: str, most: int) -> list[str]:
        with daemon_client(url) as client:
            return [sweep.sweep_id for sweep in client.sweeps(most=most)]

    for number in range(1, 2500):
        add(f"copy-{number}")
    monkeypatch.setattr(control, "sweeps", sweeps)
    async with running(control) as url:
        every = await asyncio.to_thread(some, url, 10_000)
        first = await asyncio.to_thread(some, url, 1200)

    whole = ["newer-1", *(f"copy-{number}" for number in range(2499, 0, -1)), sweep_id]
    assert every == whole
    assert first == [f"newer-{number}" for number in (4, 3, 2)] + whole[:1197]
    assert asked == [1000, 1000, 1000, 1000, 200]


async def test_what_cannot_be_read_is_left_out_and_named(
    control: FakeControl, sweep_id: str
) -> None:
    await control.publish(
        sweep_id,
        SweepStarted(run=1),
        CandidateMeasured(candidate=record(1)),
        CandidateMeasured(candidate=record(2)),
        SweepFinished(result=RESULT),
    )
    control.lose(sweep_id, 3)
    messages: list[str] = []

    def sequences(url: str) -> list[int]:
        with daemon_client(url) as client:
            return [event.sequence for event in follow(client, sweep_id, messages.append)]

    async with running(control) as url:
        heard = await asyncio.to_thread(sequences, url)

    assert heard == [1, 2, 4, 5]
    assert messages == ["event 3 cannot be read by this version, and is left out"]


async def test_an_event_of_a_newer_daemon_is_left_out_and_named() -> None:
    newer = b'id: 7\nevent: sweep.rejoiced\ndata: {"sequence": 7, "data": {"kind": "x"}}\n\n'
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + newer

    def listen(url: str) -> list[SweepEvent | UnreadableEvent]:
        with daemon_client(url) as client:
            return list(client.events("a"))

    async with scripted_server(answer) as server:
        listed = await asyncio.to_thread(listen, server.url.removesuffix("/trace"))
    assert listed == [UnreadableEvent("a", 7)]


async def test_what_is_behind_the_end_is_nothing(control: FakeControl, sweep_id: str) -> None:
    await control.cancel(sweep_id)

    def listen(url: str) -> list[SweepEvent | UnreadableEvent]:
        with daemon_client(url) as client:
            return list(client.events(sweep_id, after=2))

    async with running(control) as url:
        assert await asyncio.to_thread(listen, url) == []
