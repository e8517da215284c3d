"""Requests in the forms that clients, probes and proxies give them."""

from __future__ import annotations

import httpx2 as httpx
import pytest
from support.commands import small_sweep
from support.daemon_http import BEARER, asking, http_client, running
from support.fake_control import FakeControl

GETS = [
    "/health",
    "/v1/health",
    "/ready",
    "/v1/ready",
    "/metrics",
    "/v1/metrics",
    "/openapi.json",
    "/v1/sweeps",
    "/v1/sweeps/sweep-1",
    "/v1/sweeps/sweep-1/candidates",
    "/v1/sweeps/none",
    "/nowhere",
]


@pytest.mark.parametrize("path", GETS)
async def test_a_head_is_that_of_the_answer(control: FakeControl, sweep_id: str, path: str) -> None:
    async with running(control) as url, http_client() as client:
        got = await client.get(f"{url}{path}")
        head = await client.head(f"{url}{path}")

    assert head.status_code == got.status_code
    assert head.headers["content-type"] == got.headers["content-type"]
    if "metrics" not in path:  # It has counted the other one meanwhile.
        assert head.headers["content-length"] == str(len(got.content))
    assert head.content == b""


@pytest.mark.parametrize("path", [path for path in GETS if path != "/nowhere"])
async def test_a_slash_at_the_end_is_none(control: FakeControl, sweep_id: str, path: str) -> None:
    async with asking(control) as client:
        plain, slashed = await client.get(path), await client.get(f"{path}/")

    assert slashed.status_code == plain.status_code
    if "metrics" not in path:
        assert slashed.content == plain.content


async def test_a_slash_loses_no_body_and_opens_nothing(control: FakeControl) -> None:
    async with asking(control, headers={}) as client:
        assert (await client.get("/health/")).status_code == 200
        assert (await client.get("/v1/sweeps/")).status_code == 401
        answer = await client.post("/v1/sweeps/", json={"config": small_sweep()}, headers=BEARER)
        root = await client.get("/", headers=BEARER)

    assert answer.status_code == 201
    assert root.status_code == 404
    assert list(control.known) == ["sweep-1"]


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/health", "GET, HEAD, OPTIONS"),
        ("/v1/sweeps", "GET, HEAD, OPTIONS, POST"),
        ("/v1/sweeps/a", "DELETE, GET, HEAD, OPTIONS"),
        ("/v1/sweeps/a/cancel", "OPTIONS, POST"),
    ],
)
async def test_what_a_path_knows_is_answered_whole(
    client: httpx.AsyncClient, path: str, allow: str
) -> None:
    asked = await client.options(path)
    refused = await client.patch(path)

    assert (asked.status_code, asked.headers["allow"]) == (204, allow)
    assert (refused.status_code, refused.headers["allow"]) == (405, allow)
    assert (await client.options("/nowhere")).status_code == 404


async def test_they_are_counted_as_what_they_were(client: httpx.AsyncClient, sweep_id: str) -> None:
    await client.head(f"/v1/sweeps/{sweep_id}/")
    counted = (await client.get("/metrics")).text

    labels = 'method="HEAD",route="/v1/sweeps/{sweep_id}",status="200"'
    assert f"spica_http_requests_total{{{labels}}} 1.0" in counted


@pytest.mark.parametrize(
    "accept", ["application/json", "text/html", "application/yaml", "*/*", "nonsense", ""]
)
async def test_whatever_is_accepted_the_answer_is_json(
    client: httpx.AsyncClient, accept: str
) -> None:
    answer = await client.get("/v1/sweeps", headers={"Accept": accept})

    assert (answer.status_code, answer.json()) == (200, [])
