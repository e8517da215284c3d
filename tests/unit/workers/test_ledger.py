"""What a worker remembers, and for how long."""

from __future__ import annotations

import asyncio

import pytest

from spica_async.bus.port import Message
from workers.ledger import Ledger


def message(number: int, size: int = 1) -> Message:
    return Message(b"x" * size, str(number), "type")


def test_the_answers_that_were_not_asked_for_longest_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workers.ledger._ANSWERS", 3)
    ledger = Ledger()
    for number in range(3):
        ledger.keep_answer(("sweep", str(number)), message(number))
    assert ledger.answer(("sweep", "0")) == message(0)
    ledger.keep_answer(("sweep", "3"), message(3))
    known = [number for number in range(4) if ledger.answer(("sweep", str(number)))]
    assert known == [0, 2, 3]
    assert ledger.answer(("other", "0")) is None


def test_answers_are_bounded_by_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.ledger._ANSWER_BYTES", 100)
    ledger = Ledger()
    for number in range(10):
        ledger.keep_answer(("sweep", str(number)), message(number, size=30))
    known = [number for number in range(10) if ledger.answer(("sweep", str(number)))]
    assert known == [7, 8, 9]


def test_deaths_are_counted_on_until_they_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.ledger._DEATHS", 2)
    ledger = Ledger()
    ledger.deaths(("sweep", "a")).count += 1
    ledger.deaths(("sweep", "b")).count += 1
    ledger.deaths(("sweep", "a")).count += 1
    assert ledger.deaths(("sweep", "a")).count == 2
    ledger.deaths(("sweep", "c"))
    assert ledger.deaths(("sweep", "a")).count == 2
    assert ledger.deaths(("sweep", "b")).count == 0


async def test_one_at_a_time_has_a_claim() -> None:
    ledger = Ledger()
    holders: list[str] = []

    async def hold(name: str) -> None:
        async with ledger.claim(("sweep", "e")):
            holders.append(name)
            assert len(holders) == 1
            await asyncio.sleep(0)
            holders.remove(name)

    async with asyncio.TaskGroup() as group:
        for name in "abcde":
            group.create_task(hold(name))
    assert holders == []


async def test_claims_on_others_do_not_wait_and_a_failure_releases_one() -> None:
    ledger = Ledger()
    with pytest.raises(LookupError):
        async with ledger.claim(("sweep", "a")), ledger.claim(("sweep", "b")):
            raise LookupError
    async with asyncio.timeout(5), ledger.claim(("sweep", "a")):
        pass
