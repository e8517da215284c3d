"""Who is let in, with tokens and without any."""

from __future__ import annotations

from pathlib import Path

import httpx2 as httpx
import pytest
from support.daemon_http import BEARER, GUARDED, TOKEN, asking
from support.fake_control import FakeControl

from spica_async.errors import InputError
from spica_async.service.http.address import host_of, is_loopback
from spica_async.service.http.tokens import Tokens, read_tokens

PATHS = ["/v1/sweeps", "/v1/events", "/metrics", "/v1/metrics", "/openapi.json", "/nowhere"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "header",
    [
        None,
        "Bearer ",
        "Bearer not-the-token-of-it",
        f"Bearer {TOKEN}x",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer \xe9",
    ],
)
async def test_no_token_no_answer(control: FakeControl, path: str, header: str | None) -> None:
    headers = [] if header is None else [(b"Authorization", header.encode("latin-1"))]
    async with asking(control, GUARDED) as client:
        answer = await client.get(path, headers=headers)

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    assert TOKEN not in answer.text


@pytest.mark.parametrize("token", [TOKEN, "another-token-of-ours"])
@pytest.mark.parametrize("path", ["/v1/sweeps", "/metrics", "/openapi.json"])
async def test_each_token_opens(control: FakeControl, path: str, token: str) -> None:
    async with asking(control, GUARDED) as client:
        answer = await client.get(path, headers={"Authorization": f"bearer {token}"})

    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/health", "/v1/ready"])
async def test_probes_need_no_token(control: FakeControl, path: str) -> None:
    async with asking(control, GUARDED) as client:
        assert (await client.get(path)).status_code == 200


async def test_with_a_token_any_name_of_the_host_will_do(control: FakeControl) -> None:
    async with asking(control, GUARDED) as client:
        headers = BEARER | {"Host": "tuning.example:8265", "Origin": "https://tuning.example"}
        assert (await client.get("/v1/sweeps", headers=headers)).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8265", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1", 200),
        ("127.9.9.9:1", 200),
        ("[::1]:8265", 200),
        ("rebound.example", 421),
        ("127.0.0.1.example", 421),
        ("localhost.example:8265", 421),
        ("192.168.0.1", 421),
        ("", 421),
    ],
)
async def test_without_a_token_only_this_machine_is_a_host(
    client: httpx.AsyncClient, host: str, status: int
) -> None:
    assert (await client.get("/v1/sweeps", headers={"Host": host})).status_code == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("http://127.0.0.1:8265", 200),
        ("https://evil.example", 403),
        ("null", 403),
        ("http://[", 403),
    ],
)
async def test_without_a_token_no_page_of_the_web_can_ask(
    client: httpx.AsyncClient, sweep_id: str, origin: str, status: int
) -> None:
    answer = await client.post(f"/v1/sweeps/{sweep_id}/cancel", headers={"Origin": origin})

    assert answer.status_code == status


def test_tokens_are_not_kept() -> None:
    tokens = Tokens.of([TOKEN])

    assert TOKEN not in repr(tokens)
    assert tokens.accept(TOKEN.encode())
    assert not tokens.accept(b"")
    assert not Tokens()


def test_tokens_are_read_from_a_file_or_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"\n  {TOKEN}\n\nanother-token-of-ours\n")
    environ = {"SPICA_DAEMON_TOKEN": "the-variables-own-token"}

    assert read_tokens(file, environ) == [TOKEN, "another-token-of-ours"]
    assert read_tokens(None, environ) == ["the-variables-own-token"]
    assert read_tokens(None, {}) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "there is no token"),
        (b"short-secret", "at least 16 characters"),
        (b"secret with spaces in it", "visible ASCII"),
        ("s\u00e9cret-with-an-accent".encode(), "visible ASCII"),
        (b"\xff" * 20, "not a text file"),
    ],
)
def test_bad_tokens_are_told_of_but_not_told(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "tokens"
    file.write_bytes(content)

    with pytest.raises(InputError) as raised:
        read_tokens(file, {})

    assert str(raised.value).startswith(f"--token-file {file}: ")
    assert words in str(raised.value)
    assert "cret" not in str(raised.value)


def test_a_token_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_tokens(tmp_path / "nowhere", {})


def test_hosts_are_told_from_their_ports() -> None:
    assert [host_of(text) for text in ("[::1]:80", "[::1]", "a:1", "a")] == ["::1", "::1", "a", "a"]
    assert is_loopback("x.localhost.")
    assert not is_loopback("0.0.0.0")
