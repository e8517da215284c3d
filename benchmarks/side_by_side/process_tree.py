"""A program and all it starts, watched from outside: who lived when, on how much CPU and memory."""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

_MEMORY_SECONDS = 0.5
"""Between two looks at the memory: one makes the kernel walk all pages of all processes."""


@dataclass(slots=True)
class Span:
    """One process from its first to its last sighting.

    Attributes:
        command: its arguments, joined by spaces.
        seconds: when its CPU time was seen to have grown, since the start of the watch; the first
            and the last sighting are always among them. Ascending.
        cpu_seconds: user and system time by then, without that of its children.
    """

    pid: int
    command: str
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    @property
    def began(self) -> float:
        """The first sighting, in seconds after the start of the watch."""
        return self.seconds[0]

    @property
    def ended(self) -> float:
        """The last one."""
        return self.seconds[-1]

    @property
    def cpu_total(self) -> float:
        """CPU seconds until the last sighting."""
        return self.cpu_seconds[-1]

    def saw(self, seconds: float, cpu_seconds: float) -> None:
        """Take in a sighting, later than all others."""
        if len(self.seconds) > 1 and self.cpu_seconds[-2] == cpu_seconds:
            # It has rested since the last but one: the last tells no more than this one.
            self.seconds[-1] = seconds
        else:
            self.seconds.append(seconds)
            self.cpu_seconds.append(cpu_seconds)

    def cpu_at(self, seconds: float) -> float:
        """CPU seconds by then, evenly spread between two sightings; 0 before the first one."""
        after = bisect.bisect_right(self.seconds, seconds)
        if after == 0:
            return 0.0
        if after == len(self.seconds):
            return self.cpu_total
        (t0, t1) = self.seconds[after - 1 : after + 1]
        (c0, c1) = self.cpu_seconds[after - 1 : after + 1]
        return c0 + (c1 - c0) * (seconds - t0) / (t1 - t0)


@dataclass(slots=True)
class Sightings:
    """What was seen of a tree of processes.

    Attributes:
        spans: one for each process, in the order of their start; the root is the first.
        peak_memory_bytes: the largest sum over all that lived at a time, shared pages split among
            those that share them.
    """

    spans: list[Span] = field(default_factory=list)
    peak_memory_bytes: int = 0


class TreeWatch:
    """Looks at a process and its descendants whenever `look` is called.

    Args:
        root: process id of the program.
    """

    def __init__(self, root: int) -> None:
        self.sightings = Sightings()
        self._root = psutil.Process(root)
        self._began = time.monotonic()
        self._alive: dict[psutil.Process, Span] = {}
        self._next_memory = 0.0

    def look(self) -> None:
        """Take in who is there now."""
        elapsed = time.monotonic() - self._began
        seen = [process for process in self._processes() if self._update(process, elapsed)]
        self._alive = {process: self._alive[process] for process in seen}
        if elapsed >= self._next_memory:
            self._next_memory = elapsed + _MEMORY_SECONDS
            total = sum(_memory_bytes(process.pid) for process in seen)
            self.sightings.peak_memory_bytes = max(self.sightings.peak_memory_bytes, total)

    def _processes(self) -> Iterator[psutil.Process]:
        try:
            yield self._root
            yield from self._root.children(recursive=True)
        except psutil.NoSuchProcess:
            return

    def _update(self, process: psutil.Process, elapsed: float) -> bool:
        try:
            with process.oneshot():
                if process.status() == psutil.STATUS_ZOMBIE:
                    return False
                times = process.cpu_times()
                span = self._alive.get(process)
                # A child looks like its parent until it has become the program that it is to run.
                command = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            return False
        if span is None:
            span = self._alive[process] = Span(process.pid, command)
            self.sightings.spans.append(span)
        # It has none any more once it is ending.
        span.command = command or span.command
        span.saw(elapsed, times.user + times.system)
        return True


def _memory_bytes(pid: int) -> int:
    """The process's proportional share of memory; 0 once it is gone."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    for line in rollup.splitlines():
        name, _, value = line.partition(":")
        if name == "Pss":
            return int(value.split()[0]) * 1024
    return 0
