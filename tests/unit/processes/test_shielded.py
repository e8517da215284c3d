"""Work that is done whole though its caller is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from spica_async.processes.shielded import shielded


async def test_what_it_comes_to_is_handed_on() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 7

    async def failing() -> None:
        await asyncio.sleep(0)
        raise KeyError("missing")

    assert await shielded(work()) == 7
    with pytest.raises(KeyError, match="missing"):
        await shielded(failing())


@pytest.mark.parametrize("cancellations", [1, 2, 3])
async def test_who_is_cancelled_hears_of_it_when_all_is_done(cancellations: int) -> None:
    may_end, done = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        done.set()

    waiting = asyncio.create_task(shielded(work()))
    for _ in range(cancellations):
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
    assert not waiting.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done.is_set()


async def test_what_can_be_cut_is_cut_by_a_second_cancellation() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    waiting = asyncio.create_task(shielded(work(), can_be_cut=True))
    for _ in range(2):
        await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_failure_after_the_cancellation_is_nobodys() -> None:
    may_end = asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        raise KeyError("missing")

    waiting = asyncio.create_task(shielded(work()))
    await asyncio.sleep(0)
    waiting.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
