"""Which tokens open a daemon, and where they are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.daemon_http import TOKEN, asking
from support.fake_control import FakeControl

from spica_async.errors import InputError
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
    async with asking(control, headers={}) as client:
        answer = await client.get(path, headers=headers)

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    assert TOKEN not in answer.text


@pytest.mark.parametrize("token", [TOKEN, "another-token-of-ours"])
@pytest.mark.parametrize("path", ["/v1/sweeps", "/metrics", "/openapi.json"])
async def test_each_token_opens(control: FakeControl, path: str, token: str) -> None:
    async with asking(control, headers={}) as client:
        answer = await client.get(path, headers={"Authorization": f"bearer {token}"})

    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/health", "/v1/ready"])
async def test_probes_need_no_token(control: FakeControl, path: str) -> None:
    async with asking(control, headers={}) as client:
        assert (await client.get(path)).status_code == 200


def test_tokens_are_not_kept() -> None:
    tokens = Tokens.of([TOKEN])

    assert TOKEN not in repr(tokens)
    assert tokens.open_to(f"Bearer {TOKEN}")
    assert not tokens.open_to("")


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
def test_bad_tokens_are_refused_and_not_shown(tmp_path: Path, content: bytes, words: str) -> None:
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
