"""A journal that forgets what ended long ago, as a user has it done."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from support.commands import Spica
from support.many_sweeps import add_ended

from spica_async.journal.sql import SqlJournal


async def fill(where: Path, days_ago: float, count: int) -> None:
    async with SqlJournal.open(where) as journal:
        await add_ended(journal, count, first=time.time() - days_ago * 24 * 3600)


async def left(where: Path) -> int:
    async with SqlJournal.open(where) as journal:
        return sum((await journal.counts()).values())


def test_sweeps_are_pruned_and_their_folders_are_not(spica: Spica, tmp_path: Path) -> None:
    where = tmp_path / "results" / "journal.sqlite3"
    folder = where.parent / "sweep-1"
    folder.mkdir(parents=True)
    asyncio.run(fill(where, days_ago=10, count=3))

    kept = spica("prune", "--older-than", "20")
    assert (kept.code, kept.stdout.split(";")[0]) == (0, f"removed 0 sweeps from {where}")
    removed = spica("prune", "--older-than", "5")
    assert (removed.code, removed.stdout.split(";")[0]) == (0, f"removed 3 sweeps from {where}")

    assert asyncio.run(left(where)) == 0
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("prune", "--older-than", "inf"), "--older-than: give a number of days"),
        (("prune", "--older-than", "5"), "journal.sqlite3: see --output and --journal"),
        (("prune",), "--older-than"),
        (("serve", "--port", "0", "--keep-days", "inf"), "--keep-days: give a number of days"),
    ],
)
def test_what_is_wrong_is_one_message(spica: Spica, arguments: tuple[str, ...], words: str) -> None:
    done = spica(*arguments)

    assert done.code == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
