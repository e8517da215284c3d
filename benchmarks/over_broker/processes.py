"""Processes that take part in a measurement, and what they and the machine spend."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

BENCHMARKS = Path(__file__).parents[1]
ROOT = BENCHMARKS.parent
_END_SECONDS = 30.0


class ProcessEndedError(Exception):
    """A process ended before it was told to; its stderr has told why."""


@contextmanager
def running(
    module: str, arguments: Sequence[str], **environ: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module of ours in a process, from here to the end of the context.

    It is told to end by the end of its stdin, which comes even if this process is killed, and by
    SIGTERM; what has not ended in time is killed. Ctrl-C does not reach it: we tell it.
    """
    process = subprocess.Popen(  # noqa: S603  # our own modules
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS), **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def check_alive(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    """Notice a process that is gone.

    Raises:
        ProcessEndedError: one has ended.
    """
    for process in processes:
        if process.poll() is not None:
            raise ProcessEndedError(f"{process.args!r} ended with {process.returncode}")


@dataclass(frozen=True, slots=True)
class Spent:
    """What a stretch of time took.

    Attributes:
        seconds: by the clock.
        cpu_seconds: of each process that was looked at, in their order.
        others_share: of the machine's CPU time, what processes other than these used.
    """

    seconds: float
    cpu_seconds: tuple[float, ...]
    others_share: float


class Meter:
    """Looks at the CPU time of processes; `spent` tells what it took since `start`.

    Args:
        pids: of each process, without its children.
    """

    def __init__(self, *pids: int) -> None:
        self._processes = [psutil.Process(pid) for pid in pids]
        self.start()

    def start(self) -> None:
        """Begin a stretch."""
        self._began = time.perf_counter()
        self._cpu_began = self._cpu()
        self._machine_began = _machine_seconds()

    def spent(self) -> Spent:
        """What it took until now."""
        seconds = time.perf_counter() - self._began
        cpu = tuple(
            after - before for before, after in zip(self._cpu_began, self._cpu(), strict=True)
        )
        machine = _machine_seconds() - self._machine_began
        capacity = seconds * (os.cpu_count() or 1)
        return Spent(seconds, cpu, max(0.0, machine - sum(cpu)) / capacity)

    def _cpu(self) -> list[float]:
        return [sum(process.cpu_times()[:2]) for process in self._processes]


def _machine_seconds() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)
