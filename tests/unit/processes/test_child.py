"""Child processes on disks that hang."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from spica_async.processes.child import Child, child_environment, open_log


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
    hanging: Path,
) -> None:
    with capture_logs() as said, await open_log(hanging, patience_seconds=0.05) as file:
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


async def test_a_child_that_even_a_kill_does_not_end_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sleeping.py").write_text("import time\ntime.sleep(600)\n")
    with await open_log(None) as output:
        child = await Child.start(
            "sleeping",
            environment=child_environment([str(tmp_path)]),
            output=output,
            max_answer_bytes=100,
        )
    with capture_logs() as said, monkeypatch.context() as patched:
        # As the kernel treats a kill while a disk hangs.
        patched.setattr("os.killpg", lambda *_: None)
        await child.end(reap_seconds=0.05)
    assert [entry["event"] for entry in said] == ["child.does_not_end"]
    assert not child.has_exited
    await child.end()
    assert child.has_exited
