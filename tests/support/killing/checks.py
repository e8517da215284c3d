"""Kills a sweep at its steps, one after the other, and checks what its resumption comes to."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from support.killing.client import Driver, Found, found_in
from support.killing.driver import Command


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
    return found_in(Path(command.root) / killed.sweep_id)


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
