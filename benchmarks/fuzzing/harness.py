"""Runs cases in child processes, each watched for its time and memory, and keeps what was wrong."""

from __future__ import annotations

import faulthandler
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, Protocol

CPU_SECONDS: Final = 5.0
"""What a case may compute; other programs on the machine take nothing of it."""
_WALL_SECONDS: Final = 60.0
MEMORY_BYTES: Final = 2**30
# For what would otherwise take the machine down before it is noticed.
_ADDRESS_SPACE_BYTES: Final = 16 * 2**30
_MOST_SHOWN: Final = 1600
_ROOT: Final = Path(__file__).parents[2]


class Wrong(Exception):  # noqa: N818 - a finding is no error of the program that looks for it
    """A case came to an end that no reader may have."""


class OverTime(BaseException):
    """A case has computed, or waited, for too long."""


class Subject(Protocol):
    """What is tried: makes a case of random numbers, and has it read."""

    def make(self, rng: random.Random) -> Any:
        """The input of a case."""

    def try_one(self, case: Any) -> str:
        """What came of it, one of the few ways that are allowed; anything else is raised."""


Opener = Callable[[], AbstractContextManager[Subject]]


@dataclass(frozen=True, slots=True)
class Finding:
    """A case that was not read as it should be.

    Attributes:
        case: its number.
        what: one line; findings with the same one have the same cause.
        detail: a traceback, or what was said.
        input: the beginning of what was read.
    """

    case: int
    what: str
    detail: str
    input: str


@dataclass(slots=True)
class Tally:
    """What has come of the cases of one kind; seconds are of computing, memory in bytes."""

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    slowest: float = 0.0
    slowest_case: int = 0
    peak_bytes: int = 0


def case_random(kind: str, seed: int, case: int) -> random.Random:
    """The random numbers of one case."""
    return random.Random(f"{kind}/{seed}/{case}")  # noqa: S311  # no secret


def try_case(kind: str, subject: Subject, seed: int, case: int, tally: Tally) -> None:
    """Make a case and have it read; what comes of it goes to the tally."""
    made: Any = None
    began = time.process_time()
    try:
        made = subject.make(case_random(kind, seed, case))
        with _watched():
            tally.outcomes[subject.try_one(made)] += 1
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  # a panic of native code is no Exception
        shown = (repr(made) if not isinstance(made, bytes) else str(made))[:_MOST_SHOWN]
        detail = "".join(traceback.format_exception(error))[-_MOST_SHOWN:]
        tally.findings.append(Finding(case, _signature(error), detail, shown))
    took = time.process_time() - began
    tally.cases += 1
    tally.seconds += took
    if took > tally.slowest:
        tally.slowest, tally.slowest_case = took, case
    peak = _peak_bytes()
    if peak > MEMORY_BYTES >= tally.peak_bytes:
        tally.findings.append(Finding(case, f"memory over {MEMORY_BYTES:,} bytes", "", ""))
    tally.peak_bytes = max(tally.peak_bytes, peak)


def _peak_bytes() -> int:
    """The most memory that this process has had; `getrusage` counts whoever began it as well."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) * 1024


def run_child(kind: str, opened: Opener, seed: int, cases: range, report: int) -> None:
    """Try these cases in this process and write a line of JSON on each finding, and on the end.

    Args:
        kind: of the cases.
        opened: gives what is tried.
        seed: of all cases.
        cases: their numbers.
        report: a file descriptor to write to.
    """
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))
    tally = Tally()
    written = 0
    with os.fdopen(report, "w", encoding="utf-8") as lines, opened() as subject:

        def write(**what: Any) -> None:
            lines.write(json.dumps(what) + "\n")
            lines.flush()

        for case in cases:
            write(begins=case)
            try_case(kind, subject, seed, case, tally)
            for finding in tally.findings[written:]:
                write(finding=[finding.case, finding.what, finding.detail, finding.input])
            written = len(tally.findings)
            if tally.peak_bytes > MEMORY_BYTES:
                break  # A process of its own for the others.
        write(
            cases=tally.cases,
            outcomes=tally.outcomes,
            seconds=tally.seconds,
            slowest=[tally.slowest, tally.slowest_case],
            peak_bytes=tally.peak_bytes,
        )


def run_kind(
    kind: str, seed: int, cases: range, *, per_child: int, report: Callable[[Finding], None]
) -> Tally:
    """Try these cases in child processes, one after the other; one that dies is a finding.

    Args:
        kind: of the cases.
        seed: of all cases.
        cases: their numbers.
        per_child: how many one process tries at most.
        report: is given each finding at once.
    """
    tally = Tally()
    following = cases.start
    while following < cases.stop:
        upto = min(cases.stop, following + per_child)
        following = _run_one_child(kind, seed, range(following, upto), tally, report)
    return tally


def _run_one_child(
    kind: str, seed: int, cases: range, tally: Tally, report: Callable[[Finding], None]
) -> int:
    """The first case that is still to be tried."""
    reading, writing = os.pipe()
    program = [sys.executable, str(_ROOT / "benchmarks" / "fuzz.py"), "--child", str(writing)]
    program += ["--only", kind, "--seed", str(seed)]
    program += ["--first", str(cases.start), "--count", str(len(cases))]
    child = subprocess.Popen(  # noqa: S603  # ourselves
        program, pass_fds=[writing], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    os.close(writing)
    begun, ended = cases.start - 1, False

    def found(finding: Finding) -> None:
        tally.findings.append(finding)
        report(finding)

    with os.fdopen(reading, encoding="utf-8") as lines:
        for line in lines:
            written = json.loads(line)
            if "begins" in written:
                begun = written["begins"]
            elif "finding" in written:
                found(Finding(*written["finding"]))
            else:
                ended = True
                tally.cases += written["cases"]
                tally.outcomes.update(written["outcomes"])
                tally.seconds += written["seconds"]
                tally.peak_bytes = max(tally.peak_bytes, written["peak_bytes"])
                if written["slowest"][0] > tally.slowest:
                    tally.slowest, tally.slowest_case = written["slowest"]
    _, said = child.communicate()
    if not ended:
        detail = said.decode(errors="replace")[-_MOST_SHOWN:]
        if begun < cases.start:
            raise RuntimeError(f"{kind}: the child did not begin:\n{detail}")
        found(Finding(begun, f"the process ended with exit code {child.returncode}", detail, ""))
        tally.cases += begun + 1 - cases.start
    return begun + 1


@contextmanager
def _watched() -> Iterator[None]:
    def over(_number: int, _frame: FrameType | None) -> None:
        raise OverTime

    before = [(one, signal.signal(one, over)) for one in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
    signal.setitimer(signal.ITIMER_REAL, _WALL_SECONDS)
    # Native code hears no signals.
    faulthandler.dump_traceback_later(2 * _WALL_SECONDS, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for one, handler in before:
            signal.signal(one, handler)


def _signature(error: BaseException) -> str:
    """What an error is known again by: its type, and the last line of ours that it came through."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Wrong):
        return str(error).partition(": ")[0]
    frames = [
        f"{Path(frame.filename).relative_to(_ROOT)}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(_ROOT) and ".venv" not in frame.filename
    ]
    return f"{type(error).__name__} at {frames[-1] if frames else 'no line of ours'}"
