"""The files that children's words go to, on disks that hang."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from spica_async.processes import logs
from spica_async.processes.logs import open_log


@pytest.fixture
def hanging(tmp_path: Path) -> Path:
    """To open it is to wait for somebody who reads it."""
    path = tmp_path / "slot.log"
    os.mkfifo(path)
    return path


async def until_closed(path: Path) -> None:
    """Let the disk answer, and wait until nobody can write to the file any more."""
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        async with asyncio.timeout(10):
            while True:
                try:
                    assert os.read(reader, 1) == b""
                except BlockingIOError:
                    await asyncio.sleep(0.01)
                else:
                    return
    finally:
        os.close(reader)


async def test_a_disk_that_hangs_keeps_no_child_from_its_start(
    hanging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_PATIENCE_SECONDS", 0.05)
    with capture_logs() as said, await open_log(hanging) as file:
        assert file.name == os.devnull
    assert [line["event"] for line in said] == ["child.log_hangs"]
    await until_closed(hanging)


async def test_a_file_that_is_opened_for_nobody_is_closed(hanging: Path) -> None:
    opening = asyncio.create_task(open_log(hanging))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await until_closed(hanging)
