"""Signals that end a task: in good order at first, at once when they insist."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from spica_async.processes.stopping import Interrupts

NUMBER = signal.SIGUSR1


@pytest.fixture(autouse=True)
def harmless() -> Iterator[None]:
    before = signal.signal(NUMBER, signal.SIG_IGN)
    yield
    signal.signal(NUMBER, before)


async def interrupted(signals: int, *, ready: bool) -> tuple[bool, int]:
    """Send a task so many signals, one after the other.

    Returns:
        Whether it was cancelled, and the exit code.
    """
    interrupts = Interrupts()

    async def work() -> None:
        interrupts.listen(NUMBER)
        if ready:
            interrupts.stop.ready()
        os.kill(os.getpid(), NUMBER)
        await interrupts.stop.requested.wait()
        if signals > 1:
            os.kill(os.getpid(), NUMBER)
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    ended, _ = await asyncio.wait([task], timeout=30)
    assert ended
    assert interrupts.stop.requested.is_set()
    return task.cancelled(), interrupts.exit_code


@pytest.mark.parametrize(
    ("signals", "ready", "outcome"),
    [
        (1, True, (False, 0)),
        (1, False, (True, 0)),
        (2, True, (True, 128 + NUMBER)),
    ],
    ids=["stops", "has nothing to finish", "is signalled twice"],
)
async def test_what_signals_do(signals: int, outcome: tuple[bool, int], *, ready: bool) -> None:
    assert await interrupted(signals, ready=ready) == outcome


async def test_nohup_counts() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        interrupts = Interrupts()
        interrupts.listen(signal.SIGHUP, NUMBER)
        os.kill(os.getpid(), signal.SIGHUP)
        interrupts.stop.ready()
        await asyncio.sleep(0.05)
        assert not interrupts.stop.requested.is_set()
        os.kill(os.getpid(), NUMBER)
        async with asyncio.timeout(30):
            await interrupts.stop.requested.wait()
    finally:
        signal.signal(signal.SIGHUP, before)
