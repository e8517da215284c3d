"""The token that a daemon keeps for its own user: who can read it, and whose it may be."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx2 as httpx
import pytest
from support.daemon_http import SETTINGS, TOKEN, running
from support.fake_control import FakeControl

from spica_async.errors import InputError
from spica_async.service.client import DaemonClient
from spica_async.service.http.settings import HttpSettings
from spica_async.service.http.tokens import (
    Tokens,
    kept_token,
    new_token,
    read_own_token,
    token_path,
)

HERE = "127.0.0.1"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def own_settings(token: str = "") -> HttpSettings:
    token = token or new_token()
    return replace(SETTINGS, tokens=Tokens.of([token]), own_token=token)


def test_it_is_its_users_alone_and_goes_with_its_daemon() -> None:
    before = os.umask(0)
    try:
        with kept_token(TOKEN, HERE, 1) as path:
            assert (mode(path), mode(path.parent)) == (0o600, 0o700)
            assert path.read_text() == f"{TOKEN}\n"
            assert read_own_token(HERE, 1) == TOKEN
            assert list(path.parent.iterdir()) == [path]
    finally:
        os.umask(before)
    assert not path.exists()
    assert read_own_token(HERE, 1) is None


def test_each_address_has_its_own() -> None:
    with kept_token("one" * 10, HERE, 1), kept_token("two" * 10, HERE, 2):
        assert (read_own_token(HERE, 1), read_own_token(HERE, 2)) == ("one" * 10, "two" * 10)
        assert read_own_token("127.0.0.2", 1) is read_own_token("::1", 1) is None


def test_one_that_was_left_behind_is_replaced() -> None:
    with kept_token("left" * 10, HERE, 1):
        with kept_token("new" * 10, HERE, 1):
            assert read_own_token(HERE, 1) == "new" * 10
        assert read_own_token(HERE, 1) is None


def test_the_next_daemons_is_left_where_it_is() -> None:
    with kept_token("old" * 10, HERE, 1) as path:
        path.write_text("new" * 10)
    assert read_own_token(HERE, 1) == "new" * 10


def open_file(path: Path) -> None:
    path.chmod(0o640)


def open_folder(path: Path) -> None:
    path.parent.chmod(0o755)


def link(path: Path) -> None:
    other = path.with_name("other")
    path.rename(other)
    path.symlink_to(other)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("spoil", [open_file, open_folder, link, folder])
def test_what_others_could_have_touched_is_refused(spoil: Callable[[Path], None]) -> None:
    path = token_path(HERE, 1)
    path.parent.mkdir(parents=True, mode=0o700)
    path.write_text(TOKEN)
    path.chmod(0o600)
    assert read_own_token(HERE, 1) == TOKEN
    spoil(path)

    for use in (lambda: read_own_token(HERE, 1), lambda: kept_token(TOKEN, HERE, 1).__enter__()):
        with pytest.raises(InputError) as refused:
            use()
        assert str(path.parent) in str(refused.value)
        assert TOKEN not in str(refused.value)


@pytest.mark.parametrize("written", [b"", b"\n", b"short", b"\xc3\xa9" * 20, bytes(range(64))])
def test_what_is_no_token_is_named_and_not_shown(written: bytes) -> None:
    with kept_token(TOKEN, HERE, 1) as path:
        path.write_bytes(written)
        with (
            DaemonClient(f"http://{HERE}:1") as client,
            pytest.raises(InputError, match=r"a token (has|is)") as refused,
        ):
            client.sweep("any")
    assert str(refused.value).startswith(f"{path}: ")
    assert "short" not in str(refused.value)


def test_what_is_another_users_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with kept_token(TOKEN, HERE, 1):
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(InputError, match="another user's"):
            read_own_token(HERE, 1)
        with pytest.raises(InputError, match="another user's"), kept_token(TOKEN, HERE, 1):
            pass
        monkeypatch.undo()


def test_a_state_that_cannot_be_written_names_the_way_out(state: Path) -> None:
    state.write_text("a file")

    with pytest.raises(InputError, match="--token-file"), kept_token(TOKEN, HERE, 1):
        pass


def test_who_has_no_home_is_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_STATE_HOME")
    # As for a user whom the system does not know.
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)

    assert read_own_token(HERE, 1) is None
    with pytest.raises(InputError, match="--token-file"), kept_token(TOKEN, HERE, 1):
        pass


async def listed(url: str, token: str | None = None) -> str:
    """What comes of asking for the list, as the commands do."""

    def ask() -> str:
        with DaemonClient(url, token) as client:
            return str(client.sweeps(most=1))

    try:
        return await asyncio.to_thread(ask)
    except InputError as error:
        return str(error)


async def test_a_client_of_the_same_user_finds_it(control: FakeControl) -> None:
    async with running(control, own_settings()) as url:
        async with httpx.AsyncClient() as stranger:
            assert (await stranger.get(f"{url}/v1/sweeps")).status_code == 401
            assert (await stranger.get(f"{url}/metrics")).status_code == 401
            assert (await stranger.get(f"{url}/health")).status_code == 200
            assert (await stranger.get(f"{url}/ready")).status_code == 200
        assert await listed(url) == "[]"
        assert await listed(url.replace(HERE, "localhost")) == "[]"
        assert "none of the daemon's" in await listed(url, "another-token-0123456789")


async def test_several_daemons_have_one_each(control: FakeControl) -> None:
    async with running(control, own_settings()) as one, running(control, own_settings()) as two:
        assert await listed(one) == await listed(two) == "[]"


async def test_a_client_outlives_its_daemon(control: FakeControl) -> None:
    def ask(client: DaemonClient) -> None:
        client.sweeps(most=1)

    async with running(control, own_settings()) as url:
        client = DaemonClient(url)
        await asyncio.to_thread(ask, client)
    port = httpx.URL(url).port
    assert port is not None
    async with running(control, replace(own_settings(), port=port)):
        await asyncio.to_thread(ask, client)
    client.__exit__()


async def test_a_token_that_changes_on_the_way_is_read_again(
    control: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = new_token()
    found = ["of-the-daemon-before", token]
    monkeypatch.setattr("spica_async.service.client.read_own_token", lambda *_: found.pop(0))

    async with running(control, own_settings(token)) as url:
        assert await listed(url) == "[]"
    assert found == []


async def test_it_is_for_no_other_machine(control: FakeControl) -> None:
    with pytest.raises(InputError, match="--token-file: needed"):
        async with running(control, replace(own_settings(), host="0.0.0.0")):  # refused
            pass
