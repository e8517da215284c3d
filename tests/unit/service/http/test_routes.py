"""What the routes answer, and that whatever goes wrong is a problem with one line for a person."""

from __future__ import annotations

import asyncio
import time
from collections.abc import MutableMapping
from typing import Any

import httpx2 as httpx
import pytest
from support.commands import small_sweep
from support.daemon_http import SETTINGS, asking
from support.fake_control import FakeControl, ranked, record

from schemas.daemon import CandidatePage, SweepDetail, SweepSummary
from schemas.lifecycle import CandidateMeasured
from spica_async.errors import SpicaError
from spica_async.service.http.app import make_app


def problem(answer: httpx.Response, status: int) -> str:
    """The detail of what must be a problem."""
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert body["status"] == status
    assert body["title"]
    assert "\n" not in body["detail"]
    return str(body["detail"])


async def test_a_list_has_the_latest_first_and_can_be_of_one_state(
    client: httpx.AsyncClient, control: FakeControl, sweep_id: str
) -> None:
    await client.post("/v1/sweeps", json={"config": small_sweep()})
    control.change(sweep_id, state="running")

    every = (await client.get("/v1/sweeps")).json()
    running = (await client.get("/v1/sweeps", params={"state": "running"})).json()

    assert [sweep["sweep_id"] for sweep in every] == ["sweep-2", sweep_id]
    assert [sweep["sweep_id"] for sweep in running] == [sweep_id]
    assert SweepSummary.model_validate(running[0]).state == "running"


async def test_a_list_comes_in_pages(client: httpx.AsyncClient, control: FakeControl) -> None:
    for _ in range(5):
        await client.post("/v1/sweeps", json={"config": small_sweep()})
    control.change("sweep-4", state="running")

    async def page(**params: str | int) -> list[str]:
        answer = await client.get("/v1/sweeps", params=params)
        return [sweep["sweep_id"] for sweep in answer.json()]

    assert await page(limit=2) == ["sweep-5", "sweep-4"]
    assert await page(limit=2, offset=3) == ["sweep-2", "sweep-1"]
    assert await page(offset=9) == []
    assert await page(state="queued", limit=2) == ["sweep-5", "sweep-3"]
    for name, wrong in (("limit", 0), ("limit", 1001), ("offset", -1), ("offset", 2**31)):
        message = problem(await client.get("/v1/sweeps", params={name: wrong}), 422)
        assert message.startswith(f"{name}: ")


async def test_a_list_is_no_longer_than_a_page(
    client: httpx.AsyncClient, control: FakeControl, sweep_id: str
) -> None:
    for number in range(1000):
        control.known[f"copy-{number}"] = control.known[sweep_id]

    assert len((await client.get("/v1/sweeps")).json()) == 1000


async def test_a_page_links_to_the_next(client: httpx.AsyncClient, control: FakeControl) -> None:
    for _ in range(5):
        await client.post("/v1/sweeps", json={"config": small_sweep()})
    control.change("sweep-4", state="running")
    found, where = [], "/v1/sweeps?limit=3&state=queued"
    while where:
        answer = await client.get(where)
        found.append([sweep["sweep_id"] for sweep in answer.json()])
        link = answer.links.get("next")
        # A reference to where it was itself, whatever a proxy calls that.
        where = str(answer.url.join(link["url"])) if link else ""

    assert found == [["sweep-5", "sweep-3", "sweep-2"], ["sweep-1"]]


async def test_a_sweep_is_shown_whole(
    client: httpx.AsyncClient, control: FakeControl, sweep_id: str
) -> None:
    control.change(sweep_id, best=[ranked(3)], elapsed_seconds=2.5)

    answer = await client.get(f"/v1/sweeps/{sweep_id}")

    assert SweepDetail.model_validate(answer.json()) == control.known[sweep_id].detail


async def test_candidates_come_in_pages(
    client: httpx.AsyncClient, control: FakeControl, sweep_id: str
) -> None:
    control.known[sweep_id].records = [record(number) for number in range(7)]
    where = f"/v1/sweeps/{sweep_id}/candidates"

    answer = await client.get(where, params={"offset": 5, "limit": 4})

    page = CandidatePage.model_validate(answer.json())
    assert page == CandidatePage(total=7, offset=5, candidates=[record(5), record(6)])
    message = problem(await client.get(where, params={"limit": 1001}), 422)
    assert message.startswith("limit: ")
    assert "1000" in message
    for wrong in (-1, 2**31, 10**25):
        message = problem(await client.get(where, params={"offset": wrong}), 422)
        assert message.startswith("offset: ")


async def test_a_sweep_that_rests_is_removed(
    client: httpx.AsyncClient, control: FakeControl, sweep_id: str
) -> None:
    where = f"/v1/sweeps/{sweep_id}"
    assert sweep_id in problem(await client.delete(where), 409)
    await control.cancel(sweep_id)

    answer = await client.delete(where)

    assert (answer.status_code, answer.content) == (204, b"")
    assert sweep_id in problem(await client.get(where), 404)
    assert sweep_id in problem(await client.delete(where), 404)


@pytest.mark.parametrize(("verb", "state"), [("cancel", "cancelled"), ("pause", "paused")])
async def test_a_sweep_is_stopped(
    client: httpx.AsyncClient, sweep_id: str, verb: str, state: str
) -> None:
    answer = await client.post(f"/v1/sweeps/{sweep_id}/{verb}")

    assert answer.status_code == 200
    assert answer.json()["state"] == state


async def test_a_sweep_is_resumed(
    client: httpx.AsyncClient, control: FakeControl, sweep_id: str
) -> None:
    await client.post(f"/v1/sweeps/{sweep_id}/pause")

    answer = await client.post(f"/v1/sweeps/{sweep_id}/resume")

    assert answer.json()["state"] == "queued"


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
async def test_a_sweep_in_the_wrong_state_is_a_conflict(
    client: httpx.AsyncClient, control: FakeControl, sweep_id: str, verb: str
) -> None:
    control.change(sweep_id, state="completed")

    assert sweep_id in problem(await client.post(f"/v1/sweeps/{sweep_id}/{verb}"), 409)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/candidates"),
        ("GET", "/events"),
        ("POST", "/cancel"),
        ("POST", "/pause"),
        ("POST", "/resume"),
    ],
)
async def test_an_unknown_sweep_is_not_found(
    client: httpx.AsyncClient, method: str, path: str
) -> None:
    answer = await client.request(method, f"/v1/sweeps/nobody{path}")

    assert problem(answer, 404) == "there is no sweep nobody"


async def test_an_unknown_route_and_an_unknown_method(client: httpx.AsyncClient) -> None:
    assert "/v2/sweeps" in problem(await client.get("/v2/sweeps"), 404)
    answer = await client.delete("/v1/sweeps")
    assert "DELETE" in problem(answer, 405)
    assert answer.headers["allow"]


async def test_an_unknown_state_is_refused(client: httpx.AsyncClient) -> None:
    message = problem(await client.get("/v1/sweeps", params={"state": "asleep"}), 422)

    assert message.startswith("state: ")
    assert "running" in message


async def test_a_journal_that_fails_is_reported_and_may_be_asked_again(
    client: httpx.AsyncClient, control: FakeControl
) -> None:
    control.refusal = SpicaError("journal: the disk is full")

    answer = await client.get("/v1/sweeps")

    assert problem(answer, 503) == "journal: the disk is full"
    assert answer.headers["retry-after"] == "10"


async def test_a_bug_is_a_500_that_reveals_nothing(
    client: httpx.AsyncClient, control: FakeControl, logged: list[MutableMapping[str, Any]]
) -> None:
    control.refusal = RuntimeError("secret internals")

    answer = await client.get("/v1/sweeps")

    assert "secret" not in problem(answer, 500)
    assert "secret" not in answer.text
    assert [entry["event"] for entry in logged] == ["http.failed"]


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_probes(client: httpx.AsyncClient, control: FakeControl, prefix: str) -> None:
    assert (await client.get(f"{prefix}/health")).status_code == 200
    assert (await client.get(f"{prefix}/ready")).status_code == 200

    control.known_troubles = ["the broker does not answer", "no worker"]

    assert (await client.get(f"{prefix}/health")).status_code == 200
    message = problem(await client.get(f"{prefix}/ready"), 503)
    assert message == "the broker does not answer; no worker"


async def test_openapi_has_the_same_models(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()

    schemas = document["components"]["schemas"]
    assert {"SweepSubmission", "SweepSummary", "SweepDetail", "SweepEvent", "Problem"} <= set(
        schemas
    )
    body = document["paths"]["/v1/sweeps"]["post"]["requestBody"]["content"]
    assert body["application/json"]["schema"]["$ref"].endswith("/SweepSubmission")
    for reference in _references(document):
        assert reference.removeprefix("#/components/schemas/") in schemas


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [found for inner in value for found in _references(inner)]
    if not isinstance(value, dict):
        return []
    here = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
    return here + [found for inner in value.values() for found in _references(inner)]


async def test_answers_are_fast_with_ten_thousand_candidates(
    control: FakeControl, sweep_id: str
) -> None:
    sweep = control.known[sweep_id]
    sweep.records = [record(number) for number in range(10_000)]
    control.change(sweep_id, best=[ranked(number) for number in range(10)])
    async with asking(control) as client:
        for path in ("/v1/sweeps", f"/v1/sweeps/{sweep_id}"):
            await client.get(path)
            seconds = []
            for _ in range(5):
                began = time.perf_counter()
                await client.get(path)
                seconds.append(time.perf_counter() - began)
            assert min(seconds) < 0.1


async def test_what_happens_counts(
    client: httpx.AsyncClient, control: FakeControl, sweep_id: str
) -> None:
    await control.publish(sweep_id, CandidateMeasured(candidate=record()))
    control.change(sweep_id, state="running")
    for path in (f"/v1/sweeps/{sweep_id}", "/v1/sweeps/nobody", "/nowhere/at/all"):
        await client.get(path)

    answer = await client.get("/metrics")

    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    route = 'method="GET",route="/v1/sweeps/{sweep_id}"'
    assert f'spica_http_requests_total{{{route},status="200"}} 1.0' in lines
    assert f'spica_http_requests_total{{{route},status="404"}} 1.0' in lines
    assert 'spica_http_requests_total{method="GET",route="none",status="404"} 1.0' in lines
    assert f"spica_http_request_duration_seconds_count{{{route}}} 2.0" in lines
    assert 'spica_sweeps{state="running"} 1.0' in lines
    assert 'spica_sweeps{state="completed"} 0.0' in lines
    assert "spica_http_event_streams 0.0" in lines
    assert "nowhere" not in answer.text


async def test_metrics_without_a_journal_show_the_rest(
    client: httpx.AsyncClient, control: FakeControl
) -> None:
    control.refusal = SpicaError("journal: gone")

    answer = await client.get("/metrics")

    assert answer.status_code == 200
    assert "spica_http_event_streams" in answer.text
    assert "spica_sweeps{" not in answer.text


def test_two_applications_count_by_themselves(control: FakeControl) -> None:
    make_app(control, SETTINGS, asyncio.Event())
    make_app(control, SETTINGS, asyncio.Event())
