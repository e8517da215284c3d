"""A cache that is damaged, away, taken or too new costs a sweep no more than replays."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from structlog.testing import capture_logs
from support.cached_results import kept, measured, put
from support.postgres import PostgresNode

from spica_async.evaluate.cache import sql as sql_module
from spica_async.evaluate.cache.files import alone, set_aside
from spica_async.evaluate.cache.opening import opened
from spica_async.evaluate.cache.sql import SqlResultCache
from spica_async.evaluate.cache.tables import STEPS
from spica_async.storage.address import identity
from spica_async.storage.errors import StorageBusyError, StorageDamagedError, StorageVersionError

Logged = list[MutableMapping[str, Any]]


@pytest.fixture
def logged() -> Iterator[Logged]:
    with capture_logs() as lines:
        yield lines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "results.sqlite3"


def events(logged: Logged) -> list[str]:
    return [line["event"] for line in logged]


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)


def spoil(path: Path) -> int:
    """Overwrite all but what is read when it is opened; returns the file's size."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 4)
        file.write(b"\xff" * (size - size // 4))
    return size


def remove(path: Path) -> None:
    path.unlink()


def execute(path: Path, *statements: str) -> None:
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()


@pytest.mark.parametrize("content", [b"no database at all" * 1000, b"SQLite format 3\0" * 600])
async def test_a_damaged_file_is_set_aside_and_begun_anew(
    path: Path, logged: Logged, content: bytes
) -> None:
    write(path, content)
    async with opened(path) as cache:
        await put(cache, "k")
        assert await kept(cache, "k") == 1.0
    assert path.with_name("results.sqlite3.damaged").read_bytes() == content
    assert events(logged) == ["result_cache.damaged"]
    async with opened(path) as cache:
        assert await kept(cache, "k") == 1.0
    assert len(logged) == 1


@pytest.mark.parametrize("at_a_time", [1, 20])
async def test_damage_that_shows_while_it_is_used_is_healed(
    path: Path, logged: Logged, at_a_time: int
) -> None:
    async with SqlResultCache.open(path) as strict:
        for number in range(500):
            await put(strict, f"{number}")
    size = spoil(path)
    async with opened(path, retry_seconds=0) as cache:
        assert logged == []
        for first in range(0, 500, at_a_time):
            numbers = range(first, first + at_a_time)
            found = await asyncio.gather(*(kept(cache, f"{number}") for number in numbers))
            assert set(found) <= {1.0, None}
        await put(cache, "new", 2.0)
        assert await kept(cache, "new") == 2.0
    async with SqlResultCache.open(path) as strict:
        assert (await strict.stats()).entries == 1
    assert events(logged) == ["result_cache.failed", "result_cache.damaged"]
    assert path.with_name("results.sqlite3.damaged").stat().st_size == size


async def test_a_file_with_other_tables_is_begun_anew(path: Path, logged: Logged) -> None:
    execute(
        path,
        "CREATE TABLE result_cache_version (version INTEGER NOT NULL PRIMARY KEY)",
        f"INSERT INTO result_cache_version VALUES ({len(STEPS)})",
        "CREATE TABLE result_cache_entries (key TEXT)",
    )
    with pytest.raises(StorageDamagedError, match="its tables are not ours"):
        async with SqlResultCache.open(path):
            pass
    async with opened(path) as cache:
        await put(cache, "k")
        assert await kept(cache, "k") == 1.0
    assert events(logged) == ["result_cache.damaged"]


async def test_what_cannot_be_read_is_measured_again(url: str, logged: Logged) -> None:
    async with SqlResultCache.open(url) as strict:
        await put(strict, "k")
        for throughput in (1.0, 2.0, 3.0):
            await put(strict, "n", throughput, noisy=True)
        spoil = "UPDATE result_cache_measurements SET body = '{}' WHERE worker = 'worker 1'"
        await strict.database.write(lambda connection: connection.execute(text(spoil)))
    async with opened(url) as cache:
        assert await cache.get("k") is None
        assert await kept(cache, "n") == 2.0
        await put(cache, "k", 5.0)
        assert await kept(cache, "k") == 5.0
    assert logged == []


async def test_a_file_that_is_deleted_meanwhile_is_made_again(path: Path, logged: Logged) -> None:
    async with opened(path, retry_seconds=0) as cache:
        await put(cache, "a")
        remove(path)
        await put(cache, "b")
        await put(cache, "c")
        assert await kept(cache, "c") == 1.0
        assert await cache.get("a") is None
    assert events(logged) == ["result_cache.failed"]


async def test_one_of_a_newer_version_is_left_alone(
    empty_url: str, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = (*STEPS, ("CREATE TABLE pictures (name TEXT NOT NULL PRIMARY KEY)",))
    with monkeypatch.context() as patch:
        patch.setattr(sql_module, "STEPS", newer)
        async with SqlResultCache.open(empty_url) as strict:
            await put(strict, "k")
    with pytest.raises(StorageVersionError):
        async with SqlResultCache.open(empty_url):
            pass
    async with opened(empty_url, retry_seconds=0) as cache:
        await put(cache, "l")
        assert await cache.get("k") is None
    assert events(logged) == ["result_cache.failed"]
    assert "newer spica-async" in logged[0]["error"]
    monkeypatch.setattr(sql_module, "STEPS", newer)
    async with SqlResultCache.open(empty_url) as strict:
        assert await kept(strict, "k") == 1.0
        assert await strict.get("l") is None


async def test_where_nothing_can_be_written_nothing_is_kept(tmp_path: Path, logged: Logged) -> None:
    (tmp_path / "file").touch()
    async with opened(tmp_path / "file" / "results.sqlite3", retry_seconds=0) as cache:
        for _ in range(3):
            await put(cache, "k")
            assert await cache.get("k") is None
    assert events(logged) == ["result_cache.failed"]


async def test_one_that_failed_is_left_alone_for_a_while(tmp_path: Path, logged: Logged) -> None:
    folder = tmp_path / "folder"
    folder.touch()
    async with opened(folder / "results.sqlite3", retry_seconds=0.5) as cache:
        folder.unlink()
        await put(cache, "k")
        assert not folder.exists()
        await asyncio.sleep(0.5)
        await put(cache, "k")
        assert await kept(cache, "k") == 1.0


async def test_a_file_that_is_taken_still_answers(path: Path, logged: Logged) -> None:
    async with opened(path, retry_seconds=0) as cache:
        await put(cache, "k")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        start = time.monotonic()
        await put(cache, "l")
        assert time.monotonic() - start < 5
        assert await kept(cache, "k") == 1.0
        assert await cache.get("l") is None
        other.execute("ROLLBACK")
        other.close()
        await put(cache, "l")
        assert await kept(cache, "l") == 1.0
    assert events(logged) == ["result_cache.failed"]


async def test_a_server_that_dies_and_comes_back(postgres: PostgresNode, logged: Logged) -> None:
    url = postgres.url(postgres.add_database())
    async with opened(url, retry_seconds=0) as cache:
        await put(cache, "k")
        postgres.kill()
        assert await cache.get("k") is None
        await put(cache, "l")
        postgres.start()
        assert await kept(cache, "k") == 1.0
        assert await cache.get("l") is None
    assert events(logged) == ["result_cache.failed"]


async def test_a_fault_of_ours_is_a_miss_and_a_cancellation_is_none(
    path: Path, logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def fault(*_: Any) -> None:
        raise ZeroDivisionError("ours")

    async def wait(*_: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with opened(path, retry_seconds=0) as cache:
        await put(cache, "k")
        monkeypatch.setattr(SqlResultCache, "get", fault)
        assert await cache.get("k") is None
        monkeypatch.setattr(SqlResultCache, "get", wait)
        task = asyncio.create_task(cache.get("k"))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()
        assert await kept(cache, "k") == 1.0
    assert [(line["event"], line["error"]) for line in logged] == [("result_cache.failed", "ours")]


async def test_only_the_file_that_was_damaged_is_set_aside(path: Path) -> None:
    log_of_it = path.with_name("results.sqlite3-wal")
    write(path, b"damaged")
    write(log_of_it, b"what SQLite would add to the next file")
    damaged = identity(path)
    # Two find out at once; the first has set it aside and has begun a new one.
    await set_aside(path, damaged, 1.0)
    assert identity(path) is None
    assert identity(log_of_it) is None
    async with SqlResultCache.open(path) as strict:
        await put(strict, "k")
    await set_aside(path, damaged, 1.0)
    async with SqlResultCache.open(path) as strict:
        assert await kept(strict, "k") == 1.0
    assert path.with_name("results.sqlite3.damaged").read_text() == "damaged"


async def test_nobody_opens_it_while_another_sets_it_aside(path: Path) -> None:
    async with alone(path, 1.0):
        with pytest.raises(StorageBusyError):
            async with SqlResultCache.open(path, busy_seconds=0.1):
                pass
        opening = asyncio.create_task(open_and_put(path))
        await asyncio.sleep(0.1)
        assert identity(path) is None
    await opening
    async with SqlResultCache.open(path) as strict:
        assert await strict.get("k") is not None


async def open_and_put(path: Path) -> None:
    async with SqlResultCache.open(path) as strict:
        await strict.put("k", measured(), worker="w", noisy=False)
