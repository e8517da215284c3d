"""Kills a sweep at its steps, one after the other, and checks what its resumption comes to."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from support.killing.client import Driver, Found, found_in
from support.killing.driver import Command

from schemas.lifecycle import (
    SWEEP_EVENT,
    BestImproved,
    CandidateMeasured,
    SweepFinished,
    SweepSubmitted,
)
from spica_async.journal.sql import SqlJournal


async def uninterrupted(driver: Driver, command: Command) -> tuple[Found, list[str]]:
    """What a sweep comes to that nobody kills, and its steps."""
    whole = _named(command)
    answer = await driver.run(whole)
    assert answer.code == 0
    return found_in(Path(command.root) / whole.sweep_id), answer.steps


async def resumed(driver: Driver, command: Command, *deaths: int) -> Found:
    """What a sweep comes to that dies at each of these steps in turn, each of another run."""
    killed = _named(command)
    for step in deaths:
        await driver.run(replace(killed, die_at=step))
    answer = await driver.run(killed)
    assert answer.code == 0, f"killed at {deaths}: it could not be resumed"
    found = found_in(Path(command.root) / killed.sweep_id)
    await check_published(killed, found)
    return found


async def check_published(command: Command, found: Found) -> int:
    """Everything is published once, in order and without a gap; returns the number of events."""
    async with SqlJournal.open(command.journal) as journal:
        events = [
            SWEEP_EVENT.validate_json(event.body)
            async for event in journal.events(command.sweep_id)
        ]
        row = await journal.sweep(command.sweep_id)
    assert [event.sequence for event in events] == [*range(1, row.events + 1)]
    published = [event.data for event in events]
    assert isinstance(published[0], SweepSubmitted)
    assert isinstance(published[-1], SweepFinished)
    assert sum(isinstance(data, SweepFinished) for data in published) == 1
    candidates = [data.candidate for data in published if isinstance(data, CandidateMeasured)]
    numbers = [(candidate.branch, candidate.number) for candidate in candidates]
    assert len(numbers) == len(set(numbers))
    assert set(numbers) == found.records.keys()
    best = [data.candidate.score for data in published if isinstance(data, BestImproved)]
    assert best == sorted(set(best))
    assert best[-1] == found.ranking[0][1]
    return len(events)


async def check_each(
    driver: Driver,
    command: Command,
    choose: Callable[[list[str]], Iterable[int]],
) -> int:
    """Kill at the chosen ones of all steps, numbered from 1; returns how many that were.

    Under the schedule of rounds the candidates are those of the uninterrupted sweep.
    """
    whole, steps = await uninterrupted(driver, command)
    assert whole.status == "completed"
    assert whole.tally["failed"], "the sweep should not be too simple"
    assert whole.tally["cached"], "the sweep should not be too simple"
    count = 0
    for step in choose(steps):
        found = await resumed(driver, command, step)
        assert found == whole, f"killed at step {step}, {steps[step - 1]!r}"
        count += 1
    return count


def _named(command: Command) -> Command:
    return replace(command, sweep_id=f"{command.sweep_id}-{secrets.token_hex(4)}")
