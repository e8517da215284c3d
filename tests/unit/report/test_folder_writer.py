"""A sweep's folder on a disk that hangs, that fails, or that works."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from support.results import RESULT

from schemas.results import CandidateRecord
from spica_async.errors import InputError, SpicaError
from spica_async.report import folder_writer
from spica_async.report.folder import ResultsFolder
from spica_async.report.folder_writer import FolderWriter


def record(number: int) -> CandidateRecord:
    return CandidateRecord(
        candidate_id=f"sweep-agg-{number}",
        branch="agg",
        round=1,
        number=number,
        outcome="failed",
        cause="replay_error",
        detail="it broke",
        used_gpus=1,
        config={},
        source="optimizer",
        found_seconds=1.0,
    )


def numbers(folder: Path) -> list[int]:
    return [
        json.loads(line)["number"]
        for line in (folder / "candidates.jsonl").read_text().splitlines()
    ]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # a file sets no event
            await asyncio.sleep(0.01)


class Disk:
    """Hangs in the next line that is written, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hangs = threading.Event()
        self.released = threading.Event()
        self.writers: set[str] = set()
        plain = ResultsFolder.append

        def append(folder: ResultsFolder, record: CandidateRecord) -> None:
            self.writers.add(threading.current_thread().name)
            self.hangs.set()
            self.released.wait()
            plain(folder, record)

        monkeypatch.setattr(ResultsFolder, "append", append)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk(monkeypatch)
    yield disk
    disk.released.set()


@pytest.fixture
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_writer, "PATIENCE_SECONDS", 0.05)


async def test_all_is_written_in_order_and_none_of_it_by_the_loop(
    tmp_path: Path, disk: Disk
) -> None:
    disk.released.set()
    async with FolderWriter.open(tmp_path, "sweep") as folder:
        for number in range(1000):
            folder.evaluated(record(number))
        folder.ended(RESULT, pareto=False)
        await folder.settled()
        assert numbers(folder.path) == list(range(1000))
        assert (folder.path / "summary.json").exists()
    assert disk.writers == {"folder-sweep-0"}


@pytest.mark.usefixtures("_no_patience")
async def test_a_disk_that_hangs_is_warned_of_once_and_stops_nobody(
    tmp_path: Path, disk: Disk
) -> None:
    with capture_logs() as said:
        async with FolderWriter.open(tmp_path, "sweep") as folder:
            folder.evaluated(record(0))
            await asyncio.to_thread(disk.hangs.wait)
            folder.evaluated(record(1))
            folder.ended(RESULT, pareto=False)
            await folder.settled()
            folder.evaluated(record(2))
    (warning,) = (entry for entry in said if entry["event"] == "results.folder_hangs")
    assert warning["folder"] == str(tmp_path / "sweep")
    assert "spica-async resume" in warning["hint"]
    assert numbers(folder.path) == []
    # Once it works again, all is written after all.
    disk.released.set()
    await until((folder.path / "summary.json").exists)
    assert numbers(folder.path) == [0, 1, 2]


@pytest.mark.usefixtures("_no_patience")
async def test_a_folder_that_hangs_while_it_is_made_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "sweep" / "logs").mkdir(parents=True)
    # To open it is to wait for somebody who reads it.
    pipe = tmp_path / "sweep" / ".candidates.jsonl.part"
    os.mkfifo(pipe)
    async with FolderWriter.open(tmp_path, "sweep", resumed=True) as folder:
        folder.evaluated(record(0))
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    await until(lambda: select.select([reader], [], [], 0)[0])
    assert json.loads(os.read(reader, 10_000))["number"] == 0
    os.close(reader)


@pytest.mark.usefixtures("_no_patience")
async def test_a_later_run_of_the_sweep_writes_after_the_earlier_one(
    tmp_path: Path, disk: Disk
) -> None:
    async with FolderWriter.open(tmp_path, "sweep") as folder:
        folder.evaluated(record(7))
        await asyncio.to_thread(disk.hangs.wait)
    async with FolderWriter.open(tmp_path, "sweep", resumed=True) as again:
        again.evaluated(record(0))
        again.evaluated(record(1))
        again.resumed()
        await again.settled()
        assert numbers(folder.path) == []
        disk.released.set()
        await until(lambda: numbers(folder.path) == [0, 1])
        await again.settled()


async def test_a_full_disk_ends_the_sweep_at_its_next_candidate(tmp_path: Path) -> None:
    full = tmp_path / "sweep"
    full.mkdir()
    (full / ".candidates.jsonl.part").symlink_to("/dev/full")
    message = f"the results cannot be written to {full}: no space left on device"
    async with FolderWriter.open(tmp_path, "sweep") as folder:
        folder.evaluated(record(0))
        for _ in range(2):
            with pytest.raises(SpicaError) as refusal:
                await folder.settled()
            assert str(refusal.value) == message
        with pytest.raises(SpicaError) as refusal:
            folder.evaluated(record(1))
        assert str(refusal.value) == message


async def test_a_failure_that_nobody_has_heard_of_shows_at_the_end(tmp_path: Path) -> None:
    full = tmp_path / "sweep"
    full.mkdir()
    (full / ".candidates.jsonl.part").symlink_to("/dev/full")
    with pytest.raises(SpicaError, match="no space left on device"):
        async with FolderWriter.open(tmp_path, "sweep") as folder:
            folder.evaluated(record(0))


async def test_an_error_of_the_sweep_itself_passes_through(tmp_path: Path) -> None:
    with pytest.raises(ConnectionError):
        async with FolderWriter.open(tmp_path, "sweep"):
            raise ConnectionError


async def test_a_folder_that_cannot_be_made_is_the_input_s_fault(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"^--output .*/file: not a directory$"):
        async with FolderWriter.open(tmp_path / "file", "sweep"):
            pass


PROGRAM = """
import asyncio, sys
from pathlib import Path
from typing import Any
from spica_async.report import folder_writer

folder_writer.PATIENCE_SECONDS = 0.05

async def main():
    async with folder_writer.FolderWriter.open(Path(sys.argv[1]), "sweep", resumed=True):
        print("open", flush=True)

asyncio.run(main())
"""


def test_a_disk_that_hangs_does_not_keep_the_process_from_its_end(tmp_path: Path) -> None:
    (tmp_path / "sweep" / "logs").mkdir(parents=True)
    os.mkfifo(tmp_path / "sweep" / ".candidates.jsonl.part")
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        timeout=60,
        check=True,
        capture_output=True,
        text=True,
    )
    assert ended.stdout.splitlines()[-1] == "open"
