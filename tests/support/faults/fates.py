"""Lays out what is to happen to evaluations in children, and shows what has happened."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, TypeVar

import psutil
from support.faults.evaluator import EVERY, FOLDER_VARIABLE

WAIT_SECONDS: Final = 90.0
"""For what must happen, on a machine that is busy with other tests."""

ResultT = TypeVar("ResultT")


class Fate(StrEnum):
    """What becomes of an evaluation, each time that it is tried."""

    HOLD = "hold"
    """It goes on until `Fates.release`."""
    KILL_CHILD = "kill_child"
    KILL_WORKER = "kill_worker"
    """As a host that dies over it."""


@dataclass(frozen=True, slots=True)
class Start:
    """An evaluation that was started in a child of a worker."""

    evaluation_id: str
    worker_pid: int
    child_pid: int


class Fates:
    """The folder in which the test and the evaluator of all children meet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("laid_out", "taken", "released", "started", "ended"):
            (folder / name).mkdir(parents=True)

    def lay_out(self, fate: Fate, count: int = 1) -> None:
        """Let the next `count` evaluations that start have this fate."""
        for _ in range(count):
            # Complete before it can be taken.
            unfinished = self.folder / secrets.token_hex(8)
            unfinished.write_text(fate.value)
            unfinished.rename(self.folder / "laid_out" / unfinished.name)

    def release(self, evaluation_id: str = EVERY) -> None:
        """Let an evaluation that is held go on, or every one, now and later."""
        (self.folder / "released" / evaluation_id).touch()

    def taken(self, fate: Fate) -> list[str]:
        """The ids of the evaluations that have this fate."""
        taken = (self.folder / "taken").iterdir()
        return sorted(path.name for path in taken if path.read_text() == fate.value)

    @property
    def starts(self) -> list[Start]:
        """Every start so far, in their order."""
        return [start for _, start in self._marks("started")]

    @property
    def ended(self) -> int:
        """How many evaluations have come to their end, each as often as it has."""
        return len(self._marks("ended"))

    @property
    def running(self) -> list[Start]:
        """What runs now, as far as children live and workers are theirs."""
        ended = {name for name, _ in self._marks("ended")}
        return [
            start
            for name, start in self._marks("started")
            if name not in ended and _is_alive(start.child_pid)
        ]

    @property
    def held(self) -> list[Start]:
        """What runs now and waits for the release."""
        ids = self.taken(Fate.HOLD)
        return [start for start in self.running if start.evaluation_id in ids]

    async def until_held(self, count: int) -> list[Start]:
        """Wait until exactly so many are held, and return them."""
        await until(lambda: len(self.held) == count, f"{count} are held")
        return self.held

    def processes(self) -> list[psutil.Process]:
        """Every living process that works with this folder: workers, children, and theirs."""
        found = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                if environment.get(FOLDER_VARIABLE) == str(self.folder) and _is_alive(process.pid):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return [process for process in found if process.pid != os.getpid()]

    def _marks(self, kind: str) -> list[tuple[str, Start]]:
        marks = []
        for path in (self.folder / kind).iterdir():
            identity, worker, child, when = path.name.rsplit(".", 3)
            marks.append((int(when), path.name, Start(identity, int(worker), int(child))))
        return [(name, start) for _, name, start in sorted(marks, key=lambda mark: mark[:2])]


async def until(condition: Callable[[], ResultT], what: str) -> ResultT:
    """Wait until a condition holds; returns what made it true.

    Raises:
        AssertionError: it did not in time.
    """
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            while not (result := condition()):  # noqa: ASYNC110 - other processes set no events
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not in {WAIT_SECONDS:g} s: {what}") from None
    return result


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
