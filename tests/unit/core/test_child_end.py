"""A child process is reaped whole, however its end is waited for."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process

import psutil
import pytest

from spica_async.child_end import end_child

# Starts one of its own, and says so.
SOURCE = """
import subprocess, sys
grandchild = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
print(grandchild.pid, flush=True)
sys.stdin.read()
"""


async def child(source: str = SOURCE) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", source, stdin=PIPE, stdout=PIPE, start_new_session=True
    )


async def test_what_it_started_ends_with_it() -> None:
    process = await child()
    assert process.stdout is not None
    grandchild = psutil.Process(int(await process.stdout.readline()))
    await end_child(process)
    assert process.returncode == -9
    _, alive = psutil.wait_procs([grandchild], timeout=10)
    assert not alive


@pytest.mark.parametrize("steps", range(1, 4))
async def test_it_is_reaped_though_the_wait_be_cancelled(steps: int) -> None:
    process = await child()
    ending = asyncio.create_task(end_child(process))
    for _ in range(steps):
        await asyncio.sleep(0)
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert process.returncode == -9


async def test_one_that_has_ended_by_itself_is_left_alone() -> None:
    process = await child("")
    assert await process.wait() == 0
    await end_child(process)
    assert process.returncode == 0
