"""Turns handed out to sweeps by their weights."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spica_async.evaluate.turns import FairTurns, Share, weight_of


class Busy:
    """Somebody who always wants another turn, and counts those it gets."""

    def __init__(self, share: Share, name: str, order: list[str]) -> None:
        self.share = share
        self.name = name
        self.order = order

    async def work(self, turns: int) -> None:
        for _ in range(turns):
            async with self.share.turn():
                self.order.append(self.name)
                await asyncio.sleep(0)


async def test_no_more_turns_than_there_are() -> None:
    turns = FairTurns(3)
    held = 0
    most = 0

    async def work(share: Share) -> None:
        nonlocal held, most
        async with share.turn():
            held += 1
            most = max(most, held)
            await asyncio.sleep(0)
            held -= 1

    async with turns.share(0) as one, turns.share(10) as other, asyncio.TaskGroup() as group:
        for share in (one, other) * 10:
            group.create_task(work(share))
    assert most == 3


async def test_each_ten_of_priority_double_what_one_gets() -> None:
    turns = FairTurns(1)
    async with turns.share(0) as one, turns.share(10) as other:
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            await stack.enter_async_context(one.turn())
            waiting = [
                group.create_task(stack.enter_async_context(share.turn()))
                for share in (one, other)
                for _ in range(20)
            ]
            await asyncio.sleep(0)
            turns.resize(9)
            assert (one.taken, other.taken) == (3, 6)
            assert (one.slots, other.slots) == (3, 6)
            for task in waiting:
                task.cancel()
        assert (one.taken, other.taken) == (0, 0)


async def test_who_is_alone_gets_everything() -> None:
    turns = FairTurns(4)
    async with turns.share(-100) as share, AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(share.turn())
        assert share.taken == 4


async def test_a_wait_that_is_cancelled_takes_no_turn() -> None:
    turns = FairTurns(1)
    async with turns.share(0) as share:
        async with share.turn():
            waiting = asyncio.ensure_future(share.turn().__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})
        assert share.taken == 0
        async with asyncio.timeout(1), share.turn():
            assert share.taken == 1


async def test_a_turn_that_comes_together_with_the_cancellation_is_given_back() -> None:
    turns = FairTurns(1)
    async with turns.share(0) as share:
        first = share.turn()
        await first.__aenter__()
        waiting = asyncio.ensure_future(share.turn().__aenter__())
        await asyncio.sleep(0)
        await first.__aexit__(None, None, None)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert share.taken == 0


async def test_more_turns_are_handed_out_at_once() -> None:
    turns = FairTurns(1)
    published: list[int] = []
    async with turns.share(0) as share, AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        share.on_change = lambda: published.append(share.slots)
        for _ in range(3):
            group.create_task(stack.enter_async_context(share.turn()))
        await asyncio.sleep(0)
        assert share.taken == 1
        turns.resize(3)
        turns.resize(3)
        await asyncio.sleep(0)
        assert share.taken == 3
    assert published == [3]


@pytest.mark.parametrize("total", [1, 2, 3, 4, 6])
def test_each_ten_of_priority_double_what_one_gets_of_few_turns(total: int) -> None:
    one, other = parts_of([0, 10], total, turns=3000)
    assert other / one == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("total", [1, 2, 4, 8])
def test_nobody_starves(total: int) -> None:
    # Each gets some while the other holds all that it wants, and wants more.
    turns = 20_000
    one, other = parts_of([0, 100], total, turns=turns)
    due = 1 / (1 + weight_of(100))
    assert due - total / turns <= one <= due + 2 * total / turns
    assert one + other == 1


async def test_long_turns_of_others_take_nothing_of_ones_own_part() -> None:
    turns = FairTurns(4)
    # The third one wants nothing yet, and counts for nothing.
    async with turns.share(0) as patient, turns.share(0) as quick, turns.share(100):
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            order: list[str] = []
            waiting = [
                group.create_task(stack.enter_async_context(patient.turn())) for _ in range(9)
            ]
            await asyncio.sleep(0)
            assert patient.taken == 4
            working = [
                group.create_task(Busy(quick, "quick", order).work(10_000)) for _ in range(8)
            ]
            await asyncio.sleep(0)
            turns.resize(8)
            for _ in range(100):
                await asyncio.sleep(0)
                assert (patient.taken, quick.taken) in {(4, 3), (4, 4)}
            for task in waiting + working:
                task.cancel()
        assert len(order) > 100


@settings(max_examples=30)
@given(
    priorities=st.lists(st.integers(-20, 20), min_size=1, max_size=4),
    total=st.integers(1, 6),
)
def test_in_the_long_run_each_gets_its_part(priorities: list[int], total: int) -> None:
    parts = parts_of(priorities, total, turns=500 * len(priorities))
    weights = [weight_of(priority) for priority in priorities]
    for part, weight in zip(parts, weights, strict=True):
        assert part == pytest.approx(weight / sum(weights), rel=0.1, abs=0.01)


def parts_of(priorities: list[int], total: int, *, turns: int) -> list[float]:
    """What each gets of so many turns, all of one length, where everybody always wants more."""

    async def run() -> Counter[str]:
        fair = FairTurns(total)
        order: list[str] = []
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            tasks = []
            for number, priority in enumerate(priorities):
                share = await stack.enter_async_context(fair.share(priority))
                busy = Busy(share, str(number), order)
                # So many that some wait, too, at the moment when a turn ends.
                tasks += [group.create_task(busy.work(turns)) for _ in range(2 * total)]
            while len(order) < turns:  # noqa: ASYNC110  # others count
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
        return Counter(order[:turns])

    counts = asyncio.run(run())
    return [counts[str(number)] / turns for number in range(len(priorities))]
