"""`spica-async cache`: what is kept for later sweeps, and how to be rid of it."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from support.broker import free_port
from support.cached_results import grow_old, put
from support.commands import Finished, Spica
from support.postgres import PostgresNode

from spica_async.evaluate.cache.sql import SqlResultCache
from spica_async.storage.address import sqlite_url

DAY = 24 * 3600


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPICA_JOURNAL", raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "spica-async" / "results.sqlite3"


def fill(where: str | Path) -> None:
    """Three entries: one of now, one of two days ago, and a noisy one of four days ago."""

    async def put_all() -> None:
        async with SqlResultCache.open(where) as cache:
            for key, days in (("new", 0), ("old", 2), ("older", 4)):
                for _ in range(2):
                    await put(cache, key, noisy=key == "older")
                await grow_old(cache, key, days * DAY)

    asyncio.run(put_all())


def found(finished: Finished) -> dict[str, int]:
    assert (finished.code, finished.stderr) == (0, "")
    document = json.loads(finished.stdout)
    return {name: document[name] for name in ("entries", "measurements", "noisy", "hits")}


def refused(finished: Finished, code: int) -> str:
    """The one line that tells why."""
    assert (finished.code, finished.stdout) == (code, "")
    assert finished.stderr.startswith("error: ")
    assert finished.stderr.count("\n") == 1
    return finished.stderr


@pytest.mark.slow
def test_the_users_cache_is_shown_and_pruned(spica: Spica, file: Path, tmp_path: Path) -> None:
    fill(file)
    told = spica("cache", "stats").stdout
    assert str(file) in told
    assert re.search(r"entries +3\n", told)
    assert re.search(r"noisy +1\n", told)
    assert found(spica("cache", "stats", "--json")) == {
        "entries": 3,
        "measurements": 4,
        "noisy": 1,
        "hits": 0,
    }
    # A journal in a file has no results of its own.
    url = sqlite_url(tmp_path / "journal.sqlite3")
    assert found(spica("cache", "stats", "--json", "--journal", url))["entries"] == 3

    assert spica("cache", "prune", "--older-than", "3").stdout == "removed 1 entry\n"
    assert found(spica("cache", "stats", "--json"))["noisy"] == 0
    assert spica("cache", "prune", "--max-entries", "1").stdout == "removed 1 entry\n"
    assert spica("cache", "prune", "--all").stdout == "removed 1 entry\n"
    assert spica("cache", "prune", "--all").stdout == "removed 0 entries\n"
    assert found(spica("cache", "stats", "--json"))["entries"] == 0


def test_where_there_is_none_none_is_made(spica: Spica, file: Path) -> None:
    assert found(spica("cache", "stats", "--json"))["entries"] == 0
    assert spica("cache", "prune", "--all").stdout == "removed 0 entries\n"
    assert not file.exists()


def test_that_of_a_server_is_found_by_the_journals_url(
    spica: Spica, postgres: PostgresNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url(postgres.add_database(), password="hush")
    fill(url)
    monkeypatch.setenv("SPICA_JOURNAL", url)
    assert found(spica("cache", "stats", "--json"))["entries"] == 3
    monkeypatch.delenv("SPICA_JOURNAL")
    assert spica("cache", "prune", "--all", "--journal", url).stdout == "removed 3 entries\n"
    told = spica("cache", "stats", "--journal", url)
    assert re.search(r"entries +0\n", told.stdout)
    assert "hush" not in told.stdout + told.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("prune",), "--older-than, --max-entries or --all"),
        (("prune", "--older-than", "inf"), "--older-than"),
        (("prune", "--all", "--journal", "mysql://host/name"), "postgresql://"),
        (("stats", "--journal", "mysql://host/name"), "postgresql://"),
    ],
)
def test_bad_input_is_one_line(
    spica: Spica, file: Path, arguments: tuple[str, ...], told: str
) -> None:
    fill(file)
    assert told in refused(spica("cache", *arguments), 2)
    assert found(spica("cache", "stats", "--json"))["entries"] == 3


@pytest.mark.parametrize(
    "arguments", [("--older-than", "-1"), ("--older-than", "nan"), ("--max-entries", "x")]
)
def test_bad_numbers_are_bad_input(spica: Spica, arguments: tuple[str, str]) -> None:
    assert spica("cache", "prune", *arguments).code == 2


def test_what_cannot_be_read_is_one_line(spica: Spica, file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("no database at all" * 1000)
    told = refused(spica("cache", "stats"), 1)
    assert f"result cache {file}: " in told
    assert "next sweep" in told
    url = f"postgresql://me:hush@127.0.0.1:{free_port()}/name"
    told = refused(spica("cache", "stats", "--journal", url), 1)
    assert "hush" not in told
