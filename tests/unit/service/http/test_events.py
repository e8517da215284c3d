"""Event streams over a real socket: their order, their place to go on from, and their ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import httpx2 as httpx
import pytest
from support.daemon_http import SETTINGS, TOKEN, http_client, running
from support.fake_control import FakeControl, record
from support.results import RESULT

from schemas.lifecycle import (
    SWEEP_EVENT,
    CandidateMeasured,
    SweepEvent,
    SweepFinished,
    SweepStarted,
)
from spica_async.errors import SpicaError

pytestmark = pytest.mark.timeout(30)


async def heard(
    url: str, *, params: dict[str, int] | None = None, headers: dict[str, str] | None = None
) -> list[httpx.ServerSentEvent]:
    """All events of a stream, up to its end."""
    async with (
        http_client() as client,
        client.sse(url, params=params, headers=headers) as source,
    ):
        return [event async for event in source]


async def finish(control: FakeControl, sweep_id: str) -> None:
    """A sweep of one candidate, to its end; with its submission that makes four events."""
    await control.publish(
        sweep_id,
        SweepStarted(run=1),
        CandidateMeasured(candidate=record(2)),
        SweepFinished(result=RESULT),
    )


async def test_a_sweep_is_streamed_from_its_first_event_to_its_end(
    control: FakeControl, sweep_id: str
) -> None:
    async with running(control) as url:
        hearing = asyncio.create_task(heard(f"{url}/v1/sweeps/{sweep_id}/events"))
        await control.listened()
        await finish(control, sweep_id)
        events = await hearing

    published = control.known[sweep_id].events
    assert [event.event for event in events] == [
        "sweep.submitted",
        "sweep.started",
        "candidate.measured",
        "sweep.finished",
    ]
    assert [event.id for event in events] == ["1", "2", "3", "4"]
    assert [SWEEP_EVENT.validate_json(event.data) for event in events] == published


@pytest.mark.parametrize(
    ("params", "headers"),
    [
        ({"after": 2}, {}),
        ({}, {"Last-Event-ID": "2"}),
        ({"after": 1}, {"Last-Event-ID": "2"}),
    ],
)
async def test_a_stream_goes_on_from_what_is_known(
    control: FakeControl, sweep_id: str, params: dict[str, int], headers: dict[str, str]
) -> None:
    await finish(control, sweep_id)
    async with running(control) as url:
        events = await heard(f"{url}/v1/sweeps/{sweep_id}/events", params=params, headers=headers)

    assert [event.id for event in events] == ["3", "4"]


async def test_what_is_no_number_is_refused(control: FakeControl, sweep_id: str) -> None:
    async with running(control) as url, http_client() as client:
        answer = await client.get(
            f"{url}/v1/sweeps/{sweep_id}/events", headers={"Last-Event-ID": "x"}
        )

    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("Last-Event-ID: ")


@pytest.mark.parametrize("number", [2**31, 10**25])
async def test_a_number_that_no_event_can_have_is_refused(
    control: FakeControl, sweep_id: str, number: int
) -> None:
    async with running(control) as url, http_client() as client:
        where = f"{url}/v1/sweeps/{sweep_id}/events"
        in_url = await client.get(where, params={"after": number})
        in_header = await client.get(where, headers={"Last-Event-ID": str(number)})

    assert (in_url.status_code, in_header.status_code) == (422, 422)
    assert in_url.json()["detail"].startswith("after: ")
    assert in_header.json()["detail"].startswith("Last-Event-ID: ")
    assert control.asked_after == []


async def test_all_sweeps_are_streamed_from_now_on_without_a_place_to_go_on_from(
    control: FakeControl, sweep_id: str
) -> None:
    async with (
        running(control) as url,
        http_client() as client,
        client.sse(f"{url}/v1/events") as source,
    ):
        await control.listened()
        await control.publish(sweep_id, SweepStarted(run=1))
        event = await anext(aiter(source))

    assert event.event == "sweep.started"
    assert event.id == ""


async def test_silence_is_filled_with_comments(
    control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastapi.routing._PING_INTERVAL", 0.05)
    async with (
        running(control) as url,
        http_client() as client,
        client.stream("GET", f"{url}/v1/events") as answer,
    ):
        lines = answer.aiter_lines()
        comments = [line for line in [await anext(lines) for _ in range(6)] if line]

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert comments == [": ping"] * 3


async def test_only_so_many_listen_at_a_time_and_who_leaves_makes_room(
    control: FakeControl, sweep_id: str
) -> None:
    async with (
        running(control, replace(SETTINGS, streams=1)) as url,
        http_client() as client,
    ):
        async with client.stream("GET", f"{url}/v1/events"):
            await control.listened()
            refused = await client.get(f"{url}/v1/sweeps/{sweep_id}/events")
            gauge = (await client.get(f"{url}/metrics")).text
        await control.listened(0)
        async with client.stream("GET", f"{url}/v1/events") as allowed:
            assert allowed.status_code == 200

    assert refused.status_code == 503
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.headers["retry-after"]
    assert "spica_http_event_streams 1.0" in gauge.splitlines()


async def test_a_reader_who_takes_nothing_is_left(control: FakeControl, sweep_id: str) -> None:
    large = CandidateMeasured(candidate=record().model_copy(update={"detail": "x" * 1_000_000}))
    async with running(control, stuck_seconds=0.2) as url:
        port = httpx.URL(url).port
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        head = f"GET /v1/sweeps/{sweep_id}/events HTTP/1.1\r\nHost: x\r\n"
        writer.write(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        await control.listened()
        # More than the buffers of both sides hold.
        await control.publish(sweep_id, *[large] * 20)
        await control.listened(0)
        writer.close()


async def test_a_stream_whose_source_fails_ends(
    control: FakeControl, sweep_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: str, **__: object) -> AsyncIterator[SweepEvent]:
        for event in control.known[sweep_id].events:
            assert isinstance(event, SweepEvent)
            yield event
            raise SpicaError("journal: gone")

    monkeypatch.setattr(control, "events", fails)
    async with running(control) as url:
        events = await heard(f"{url}/v1/sweeps/{sweep_id}/events")

    assert [event.event for event in events] == ["sweep.submitted"]


@pytest.mark.parametrize(("after", "status"), [(3, 200), (4, 204), (9, 204)])
async def test_behind_the_end_of_a_sweep_there_is_nothing_to_come_for(
    control: FakeControl, sweep_id: str, after: int, status: int
) -> None:
    await finish(control, sweep_id)
    async with running(control) as url, http_client() as client:
        answer = await client.get(
            f"{url}/v1/sweeps/{sweep_id}/events", headers={"Last-Event-ID": str(after)}
        )

    assert answer.status_code == status
    assert (answer.text == "") is (status == 204)


async def test_one_that_may_be_resumed_is_waited_for(control: FakeControl, sweep_id: str) -> None:
    await control.pause(sweep_id)
    async with running(control) as url, http_client() as client:
        path = f"{url}/v1/sweeps/{sweep_id}/events?after=2"
        async with client.stream("GET", path) as answer:
            assert answer.status_code == 200


async def test_an_event_that_cannot_be_read_is_left_out_and_named(
    control: FakeControl, sweep_id: str
) -> None:
    await finish(control, sweep_id)
    control.lose(sweep_id, 3)
    async with running(control) as url, http_client() as client:
        text = (await client.get(f"{url}/v1/sweeps/{sweep_id}/events")).text

    parts = [part.splitlines() for part in text.split("\n\n") if "id: " in part]
    assert [part[-1] for part in parts] == ["id: 1", "id: 2", "id: 3", "id: 4"]
    comment = f": event 3 of sweep {sweep_id} cannot be read by this version"
    assert parts[2][:-1] == [comment]


@pytest.mark.parametrize("path", ["/v1/events", "/v1/sweeps/sweep-1/events"])
async def test_the_head_of_a_stream_is_no_stream(
    control: FakeControl, sweep_id: str, path: str
) -> None:
    async with running(control) as url, http_client() as client:
        answer = await client.head(f"{url}{path}")
        await control.listened(0)

    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text == ""
