"""Runs a program on one core and records what can be seen of it from outside."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from side_by_side.process_tree import Sightings, Span, TreeWatch

_LOOK_SECONDS = 0.1
_END_SECONDS = 30.0
_QUIET = {"DYN_LOG": "error", "RUST_LOG": "error"}


class UnreadableRunError(Exception):
    """A program failed, or left something else than this benchmark knows how to read."""


@dataclass(slots=True)
class Recording:
    """One run of a program.

    Attributes:
        exit_code: negative if it was ended by a signal.
        wall_seconds: from its start to its end.
        cpu_seconds: of the program and all that it started and waited for.
        others_share: of the core's time, what was spent by anybody else.
        line_seconds: when each line of the watched file was there, since the start.
        sightings: its processes.
    """

    exit_code: int
    wall_seconds: float
    cpu_seconds: float
    others_share: float
    line_seconds: list[float]
    sightings: Sightings

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        path.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    def check(self, folder: Path) -> None:
        """See to it that the program that ran in a folder did not fail.

        Raises:
            UnreadableRunError: if it did.
        """
        if self.exit_code:
            told = (folder / "stderr").read_text(encoding="utf-8", errors="replace")
            raise UnreadableRunError(f"{folder}: exit code {self.exit_code}: {told[-4000:]}")

    @classmethod
    def load(cls, path: Path) -> Recording:
        """Read what `save` wrote."""
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        seen = document.pop("sightings")
        spans = [Span(**span) for span in seen.pop("spans")]
        return cls(sightings=Sightings(spans=spans, **seen), **document)


class LineWatch:
    """Tells when lines came into a file that another process appends to.

    Args:
        folder: where to look.
        pattern: of the file's name, relative to the folder; it need not be there yet.
    """

    def __init__(self, folder: Path, pattern: str) -> None:
        self.seconds: list[float] = []
        self._folder = folder
        self._pattern = pattern
        self._file: IO[bytes] | None = None

    def look(self, elapsed: float) -> None:
        """Note `elapsed` for each line that has come since the last look."""
        if self._file is None:
            found = next(self._folder.glob(self._pattern), None)
            if found is None:
                return
            self._file = found.open("rb")
        lines = self._file.read().count(b"\n")
        self.seconds += [elapsed] * lines

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()


def record(
    command: Sequence[str],
    *,
    core: int,
    folder: Path,
    watched: str,
    environ: Mapping[str, str],
) -> Recording:
    """Run `command` in `folder` on one core, to its end.

    Its output goes to `stdout` and `stderr` in the folder. Whatever ends this ends the program.

    Args:
        command: the program and its arguments.
        core: the only one that the program and its children may use.
        folder: its working directory.
        watched: glob pattern, in the folder, of the file whose lines are timed.
        environ: variables beside those of this process.
    """
    lines = LineWatch(folder, watched)
    before = _Spent.now(core)
    with (folder / "stdout").open("wb") as stdout, (folder / "stderr").open("wb") as stderr:
        process = subprocess.Popen(  # noqa: S603  # the benchmark's own commands
            ["taskset", "--cpu-list", str(core), *command],  # noqa: S607  # wherever it is
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **_QUIET, **environ},
            start_new_session=True,
        )
        watch = TreeWatch(process.pid)
        try:
            while process.poll() is None:
                watch.look()
                lines.look(time.monotonic() - before.at)
                time.sleep(_LOOK_SECONDS)
        finally:
            _end(process)
    spent = _Spent.now(core)
    lines.look(spent.at - before.at)
    lines.close()
    wall = spent.at - before.at
    cpu = spent.children_cpu - before.children_cpu
    busy = spent.core_busy - before.core_busy
    return Recording(
        exit_code=process.returncode,
        wall_seconds=wall,
        cpu_seconds=cpu,
        others_share=max(0.0, busy - cpu) / wall,
        line_seconds=lines.seconds,
        sightings=watch.sightings,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass(frozen=True, slots=True)
class _Spent:
    """Clocks at one moment, in seconds."""

    at: float
    children_cpu: float
    core_busy: float

    @classmethod
    def now(cls, core: int) -> _Spent:
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        times = psutil.cpu_times(percpu=True)[core]
        idle = times.idle + times.iowait + times.guest + times.guest_nice
        return cls(time.monotonic(), own.ru_utime + own.ru_stime, sum(times) - idle)
