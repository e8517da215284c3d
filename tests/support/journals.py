"""Sweeps and facts to keep in a journal, and how they are read back."""

from __future__ import annotations

from typing import Final

from spica_async.journal.port import Fact, Journal, Lease, NewSweep, RecordedFact

LONG: Final = Lease("me", 60.0)
"""A lease that outlasts a test."""


def new_sweep(name: str = "one", priority: int = 0) -> NewSweep:
    return NewSweep(name, f"/results/{name}", '{"a": "\\u00e4 \\u2603 ☃"}', priority)


def fact(number: int) -> Fact:
    return Fact("counted", f'{{"n": {number}}}')


def some_facts(after: int, count: int) -> list[Fact]:
    return [fact(number) for number in range(after + 1, after + count + 1)]


async def all_facts(journal: Journal, name: str = "one", after: int = 0) -> list[RecordedFact]:
    return [one async for one in journal.facts(name, after)]


async def numbers_that_count(journal: Journal, name: str = "one") -> int:
    """How many facts there are, after a look whether each stands at its own number."""
    found = await all_facts(journal, name)
    assert [(one.number, one.fact) for one in found] == [
        (number, fact(number)) for number in range(1, len(found) + 1)
    ]
    assert (await journal.sweep(name)).last == len(found)
    return len(found)
