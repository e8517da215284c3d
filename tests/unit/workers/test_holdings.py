"""What is held, and how a cancelled sweep ends it."""

from __future__ import annotations

import asyncio

import pytest

from schemas.messages import EvaluationRequest, SyntheticLoad
from workers.holdings import EvaluationCancelledError, Holdings


def request(evaluation_id: str = "e", sweep_id: str = "sweep") -> EvaluationRequest:
    load = SyntheticLoad(isl=1, osl=1, requests=1, concurrency=1)
    return EvaluationRequest(evaluation_id=evaluation_id, sweep_id=sweep_id, sample={}, load=load)


async def test_ids_are_listed_once_while_they_are_held() -> None:
    holdings = Holdings()
    async with holdings.hold(request("a")), holdings.hold(request("b")):
        async with holdings.hold(request("a")):
            assert holdings.evaluation_ids == ["a", "b"]
        assert holdings.evaluation_ids == ["a", "b"]
    assert holdings.evaluation_ids == []


async def test_a_cancelled_sweep_is_not_held_any_more() -> None:
    holdings = Holdings()
    holdings.cancel_sweep("sweep", 1, 0)
    with pytest.raises(EvaluationCancelledError):
        async with holdings.hold(request()):
            pytest.fail("held")
    async with holdings.hold(request(sweep_id="other")):
        pass


async def test_what_has_not_started_is_ended_whatever_the_grace() -> None:
    holdings = Holdings()
    with pytest.raises(EvaluationCancelledError):
        await asyncio.wait_for(hold_and_cancel(holdings, 1000), timeout=10)
    assert holdings.evaluation_ids == []


async def hold_and_cancel(holdings: Holdings, grace_seconds: float) -> None:
    async with holdings.hold(request()):
        holdings.cancel_sweep("sweep", 1, grace_seconds)
        holdings.cancel_sweep("sweep", 1, grace_seconds)
        await asyncio.Event().wait()


async def test_other_errors_pass_as_they_are() -> None:
    holdings = Holdings()
    with pytest.raises(TimeoutError, match="of the system"):
        async with holdings.hold(request()):
            raise TimeoutError("of the system")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0), holdings.hold(request()):
            await asyncio.Event().wait()


async def test_the_end_of_the_task_is_no_cancelled_evaluation() -> None:
    holdings = Holdings()

    async def hold() -> None:
        async with holdings.hold(request()) as holding:
            holding.has_started = True
            holdings.cancel_sweep("sweep", 1, 0)
            await asyncio.Event().wait()

    task = asyncio.ensure_future(hold())
    await asyncio.sleep(0)
    # Both at once: the sweep's cancellation is due, and the task is to end.
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_only_so_many_sweeps_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.holdings._REMEMBERED_SWEEPS", 2)
    holdings = Holdings()
    for sweep_id in ("a", "b", "a", "c"):
        holdings.cancel_sweep(sweep_id, 1, 0)
    async with holdings.hold(request(sweep_id="b")):
        pass
    for sweep_id in ("a", "c"):
        with pytest.raises(EvaluationCancelledError):
            async with holdings.hold(request(sweep_id=sweep_id)):
                pytest.fail("held")


async def test_a_word_that_comes_while_it_ends_changes_nothing() -> None:
    holdings = Holdings()

    async def hold() -> None:
        async with holdings.hold(request()):
            holdings.cancel_sweep("sweep", 1, 0)
            try:
                await asyncio.Event().wait()
            finally:
                # As a trace that is let go takes a moment.
                await asyncio.sleep(0)
                holdings.cancel_sweep("sweep", 1, 0)
                await asyncio.sleep(0)

    with pytest.raises(EvaluationCancelledError):
        await asyncio.wait_for(hold(), timeout=10)
