"""Worker processes that a test starts, stops and kills by their ids."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

from support.faults.evaluator import FOLDER_VARIABLE, SECONDS_VARIABLE
from support.faults.fates import WAIT_SECONDS, Fates, until

FINGERPRINT: Final = "engine"
_TESTS = Path(__file__).parents[2]
_PROGRAM = (sys.executable, "-P", "-m", "support.faults.program")


class WorkerProcess:
    """A worker and what it has logged so far."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for the signal that it died of."""
        return self._process.poll()

    @property
    def log(self) -> str:
        """All that it wrote to stderr."""
        return self._log.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        """What it logged under this name, in order."""
        lines = [line for line in self.log.splitlines() if line.startswith("{")]
        return [entry for entry in map(json.loads, lines) if entry["event"] == name]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to it, and not to its children."""
        self._process.send_signal(number)

    async def terminate(self) -> None:
        """Send SIGTERM, but not before it has come to listen: until then that is its death."""
        await self.logged("worker.bus")
        self.signal(signal.SIGTERM)

    def kill_if_running(self) -> None:
        """End it at once, also when it is stopped."""
        if self.exit_code is None:
            self._process.kill()
            self._process.wait()

    async def logged(self, name: str, times: int = 1) -> list[dict[str, Any]]:
        """Wait until it has logged this so many times."""
        await until(
            lambda: len(self.events(name)) >= times or self.exit_code is not None,
            f"{self.name} logs {name}",
        )
        found = self.events(name)
        assert len(found) >= times, f"{self.name} has ended:\n{self.log}"
        return found

    async def ended(self) -> int:
        """Wait for its end; returns the exit code."""
        return await asyncio.to_thread(self._process.wait, WAIT_SECONDS)


class Workers:
    """The worker processes of one test. Made by `open`, whose end kills those that are left."""

    def __init__(self, url: str, fates: Fates, *, seconds: float) -> None:
        self.all: list[WorkerProcess] = []
        self._url = url
        self._fates = fates
        self._seconds = seconds
        self._numbers = count(1)

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, fates: Fates, *, seconds: float = 0.1) -> AsyncIterator[Workers]:
        """Workers whose evaluations take so many seconds unless their fate is another.

        Raises:
            AssertionError: a process is left when all workers have ended.
        """
        workers = cls(url, fates, seconds=seconds)
        try:
            yield workers
        finally:
            for worker in workers.all:
                worker.kill_if_running()
            await workers.check_nothing_is_left()

    @property
    def running(self) -> list[WorkerProcess]:
        """Those that have not ended."""
        return [worker for worker in self.all if worker.exit_code is None]

    def start(self, *, url: str | None = None, **options: Any) -> WorkerProcess:
        """Start one; `options` are of `WorkerOptions`, by default two slots."""
        name = f"w{next(self._numbers)}"
        options = {
            "name": name,
            "slots": 2,
            "engine_fingerprint": FINGERPRINT,
            "heartbeat_seconds": 1.0,
        } | options
        log = self._fates.folder / f"{name}.log"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [*_PROGRAM, url or self._url, json.dumps(options)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env={
                    **os.environ,
                    "PYTHONPATH": str(_TESTS),
                    FOLDER_VARIABLE: str(self._fates.folder),
                    SECONDS_VARIABLE: str(self._seconds),
                },
            )
        worker = WorkerProcess(name, process, log)
        self.all.append(worker)
        return worker

    def of(self, pid: int) -> WorkerProcess:
        """The worker with this process id."""
        return next(worker for worker in self.all if worker.pid == pid)

    async def drain(self) -> None:
        """End all that run in good order.

        Raises:
            AssertionError: one did not, or left a process behind.
        """
        running = self.running
        for worker in running:
            await worker.terminate()
        for worker in running:
            code = await worker.ended()
            assert code == 0, f"{worker.name} ended with {code}:\n{worker.log}"
        await self.check_nothing_is_left()

    async def check_nothing_is_left(self) -> None:
        """Wait until no process of any worker is there, as children of killed ones soon are not.

        Raises:
            AssertionError: some are, and are killed now.
        """
        try:
            await until(lambda: not self._fates.processes(), "no process is left")
        except AssertionError:
            left = self._fates.processes()
            text = [f"{process.pid}: {' '.join(process.cmdline())}" for process in left]
            for process in left:
                process.kill()
            raise AssertionError(f"processes are left: {text}") from None
