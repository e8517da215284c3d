"""The end of child processes."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE

import pytest
from structlog.testing import capture_logs

from spica_async.processes import child_end
from spica_async.processes.child_end import end_child


async def test_a_child_that_even_a_kill_does_not_end_is_left_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(child_end, "_REAP_SECONDS", 0.05)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", "import time; time.sleep(600)"),
        stdin=PIPE,
        stdout=PIPE,
        start_new_session=True,
    )
    with capture_logs() as said, monkeypatch.context() as patched:
        # As the kernel treats a kill while a disk hangs.
        patched.setattr("os.killpg", lambda *_: None)
        await end_child(process)
    assert [entry["event"] for entry in said] == ["child.does_not_end"]
    monkeypatch.setattr(child_end, "_REAP_SECONDS", 10.0)
    await end_child(process)
    assert process.returncode == -9
