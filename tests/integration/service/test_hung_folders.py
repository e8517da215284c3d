"""A daemon whose sweeps' folders are on a disk that hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemons import daemon, make_quick, small_config

from spica_async.report import folder_writer
from spica_async.report.folder import ResultsFolder

SWEEPS = 8


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    make_quick(monkeypatch)
    monkeypatch.setattr(folder_writer, "PATIENCE_SECONDS", 0.1)


class HungDisk:
    """Lets nothing be written; knows which threads have tried."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.released = threading.Event()
        self.writers: set[int] = set()
        for method in ("write_config", "write_plan", "show_candidates", "append", "write_result"):
            monkeypatch.setattr(ResultsFolder, method, self._hanging(method))

    def _hanging(self, method: str) -> Any:
        plain = getattr(ResultsFolder, method)

        def hang(*args: Any, **kwargs: Any) -> Any:
            self.writers.add(threading.get_ident())
            self.released.wait()
            return plain(*args, **kwargs)

        return hang


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[HungDisk]:
    disk = HungDisk(monkeypatch)
    yield disk
    disk.released.set()


async def until_all_is_written() -> None:
    async with asyncio.timeout(30):
        while folder_writer._FolderThread._known:  # noqa: ASYNC110  # nobody tells of it
            await asyncio.sleep(0.01)


async def test_all_sweeps_go_on_and_end_and_their_folders_are_written_later(
    tmp_path: Path, disk: HungDisk
) -> None:
    where, output = tmp_path / "journal.sqlite3", tmp_path / "results"
    async with daemon(where, output, parallel_sweeps=SWEEPS) as running:
        names = [await running.submit() for _ in range(SWEEPS)]
        for name in names:
            detail = await running.until(name, "completed", "exhausted", "stalled", "failed")
            assert detail.state in {"completed", "exhausted", "stalled"}
    assert disk.writers
    assert threading.get_ident() not in disk.writers
    assert not list(output.rglob("summary.json"))
    disk.released.set()
    await until_all_is_written()
    assert {path.parent.name for path in output.rglob("summary.json")} == set(names)
    for name in names:
        assert (output / name / "candidates.jsonl").read_text().count("\n") > 0


async def test_what_runs_can_be_cancelled_and_paused_and_left(
    tmp_path: Path, disk: HungDisk
) -> None:
    where, output = tmp_path / "journal.sqlite3", tmp_path / "results"
    gate = asyncio.Semaphore(0)
    async with asyncio.timeout(60), daemon(where, output, parallel_sweeps=3) as running:
        running.worker.gate = gate
        paused, cancelled, left = [await running.submit(small_config()) for _ in range(3)]
        for name in (paused, cancelled, left):
            await running.until(name, "running")
        await running.manager.pause(paused)
        await running.manager.cancel(cancelled)
        await running.until(paused, "paused")
        await running.until(cancelled, "cancelled")
        assert (await running.manager.sweep(left)).state == "running"
    assert threading.get_ident() not in disk.writers
