"""Where results are kept, which of them, and what a command that keeps none pays for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from schemas.messages import Cause, Measurement, Outcome
from spica_async.errors import InputError
from spica_async.evaluate.cache.opening import cache_place, opened, user_cache_file
from spica_async.evaluate.cache.port import NoCache, is_cacheable
from spica_async.storage.address import sqlite_url


def test_the_users_cache_has_them_unless_a_server_has_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "spica-async" / "results.sqlite3"
    assert user_cache_file() == file
    assert cache_place(None) == file
    assert cache_place(tmp_path / "journal.sqlite3") == file
    assert cache_place(sqlite_url(tmp_path / "journal.sqlite3")) == file
    assert cache_place("postgresql://host/name") == "postgresql://host/name"
    with pytest.raises(InputError):
        cache_place("mysql://host/name")


async def test_no_place_at_all_is_told() -> None:
    with pytest.raises(InputError):
        async with opened("mysql://host/name"):
            pass


@pytest.mark.parametrize(
    ("outcome", "cause", "kept"),
    [
        ("feasible", None, True),
        ("unsupported", "engine_unsupported", True),
        ("unsupported", "no_kv_room", False),
        ("infeasible", "over_budget", False),
        ("failed", "time_limit", False),
        ("failed", "child_died", False),
        ("failed", "trace_unavailable", False),
        ("failed", "engine_unsupported", False),
    ],
)
def test_only_what_will_come_out_again_is_kept(
    outcome: Outcome, cause: Cause | None, *, kept: bool
) -> None:
    assert is_cacheable(Measurement(outcome=outcome, cause=cause)) is kept


async def test_no_cache_keeps_nothing() -> None:
    cache = NoCache()
    await cache.put("k", Measurement(outcome="feasible", report={}), worker="w", noisy=False)
    assert await cache.get("k") is None


def test_to_know_of_the_cache_loads_no_database() -> None:
    modules = "spica_async.evaluate.reuse, spica_async.evaluate.cache.opening"
    script = f"import sys, {modules}; print('sqlalchemy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
