"""A disk that is full: what was acknowledged stays, and the journal goes on once there is room."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import appending
from support.journals import numbers_that_count

from spica_async.journal.sql import SqlJournal
from spica_async.storage.address import sqlite_url

_BYTES = 400_000

# In a name space of its own the mount ends with the process.
_ON_A_SMALL_DISK = """
mount -t tmpfs -o size=2m tmpfs "$1" && cd "$1" || exit 1
head -c 1000000 /dev/zero > filler
"$2" "$3" "$4" &
trap 'kill -KILL $!; wait $!; cp journal.db* "$5"' TERM
wait $!
"""

# The disk is as good as full from the start; what is left does for some of SQLite's files.
_OPEN_ON_A_FULL_DISK = """
import asyncio, os, sys
from pathlib import Path
from spica_async.storage.errors import StorageFullError
from spica_async.journal.port import NewSweep
from spica_async.journal.sql import SqlJournal

async def use(path):
    async with SqlJournal.open(path) as journal:
        await journal.create(NewSweep("one", "", "x" * 100_000))
        return len(await journal.sweeps())

for free in (0, 4096, 8192, 16384, 36864, 65536):
    filler = os.open("filler", os.O_WRONLY | os.O_CREAT)
    try:
        while os.write(filler, bytes(4096)) == 4096:
            pass
    except OSError:
        pass
    os.ftruncate(filler, os.fstat(filler).st_size - free)
    os.close(filler)
    try:
        asyncio.run(use(Path(f"{free}.db")))
    except StorageFullError:
        print("full", end=" ")
    os.unlink("filler")
    print(asyncio.run(use(Path(f"{free}.db"))), end=" ", flush=True)
    os.unlink(f"{free}.db")
"""


def own_disk() -> list[str] | None:
    """How to run a program that may mount; None where that cannot be had."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return None
    command = [unshare, "--mount"]
    if os.geteuid() != 0:
        command += ["--user", "--map-root-user"]
    tried = subprocess.run([*command, "true"], capture_output=True, check=False)
    return command if tried.returncode == 0 else None


async def until_it_went_on(process: asyncio.subprocess.Process) -> tuple[str, int]:
    """Read on until it was full and went on; returns its complaint and the last number."""
    assert process.stdout is not None
    complaint, last, more = "", 0, 0
    async with asyncio.timeout(60):
        async for line in process.stdout:
            text = line.decode().strip()
            if text.startswith("full"):
                complaint = text
            elif text != "ready":
                last = int(text)
                more += bool(complaint)
            if more == 20:
                break
    return complaint, last


async def check(path: Path, last: int) -> None:
    async with SqlJournal.open(path) as journal:
        assert await numbers_that_count(journal) >= last


async def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        appending.__file__,
        sqlite_url(path),
        str(_BYTES),
        stdout=asyncio.subprocess.PIPE,
    )
    complaint, last = await until_it_went_on(process)
    process.kill()
    await process.wait()
    assert complaint.startswith(f"full journal {path}: ")
    assert last > 60
    await check(path, last)


async def test_a_journal_that_is_opened_on_a_full_disk(tmp_path: Path) -> None:
    command = own_disk()
    if command is None:
        pytest.skip("nothing may be mounted here")
    process = await asyncio.create_subprocess_exec(
        *command,
        *("sh", "-c", 'mount -t tmpfs -o size=1m tmpfs "$1" && cd "$1" && exec "$2" -c "$3"', "sh"),
        *(tmp_path, sys.executable, _OPEN_ON_A_FULL_DISK),
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    assert said.decode().split() == ["full", "1"] * 6


async def test_a_disk_without_room(tmp_path: Path) -> None:
    command = own_disk()
    if command is None:
        pytest.skip("nothing may be mounted here")
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    process = await asyncio.create_subprocess_exec(
        *command,
        *("sh", "-c", _ON_A_SMALL_DISK, "sh", disk),
        *(sys.executable, appending.__file__, sqlite_url(disk / "journal.db"), kept),
        stdout=asyncio.subprocess.PIPE,
    )
    complaint, last = await until_it_went_on(process)
    process.terminate()
    await process.communicate()
    assert complaint == f"full journal {disk}/journal.db: database or disk is full"
    assert last > 60
    await check(kept / "journal.db", last)
