"""Designers for the sampler's process that answer at once, or not as they should."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from spica_async.optimizer.assignments import centre
from spica_async.optimizer.compile_clock import CompileClock
from spica_async.optimizer.types import Study
from spica_async.optimizer.wire import AskRequest
from spica_async.space.parameters import Assignment


class Honest:
    """Encodes what it was told in `x`: the ask's first number, trials told, trials pending."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.clock = CompileClock()

    def prepare(self, request: AskRequest, interrupted: Callable[[], bool]) -> None:
        pass

    def suggest(self, request: AskRequest) -> list[Assignment]:
        told = [trial.number for trial in request.history]
        pending = [suggestion.number for suggestion in request.pending]
        assert told == sorted(told)
        assert pending == sorted(pending)
        code = request.first / 1e3 + len(told) / 1e6 + len(pending) / 1e9
        return [centre(self.study.parameters) | {"x": code} for _ in range(request.count)]


class Noisy(Honest):
    def suggest(self, request: AskRequest) -> list[Assignment]:
        print("a warning from some library", flush=True)  # noqa: T201 - The noise under test.
        os.write(1, b"and one from native code")
        print("more of it", file=sys.stderr, flush=True)  # noqa: T201 - As above.
        return super().suggest(request)


class Environment(Honest):
    """Raises with a description of the process as its message."""

    def suggest(self, request: AskRequest) -> list[Assignment]:
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        raise RuntimeError(
            f"sigint ignored: {ignored}, leads its group: {os.getpgrp() == os.getpid()}, "
            f"platform: {os.environ['JAX_PLATFORMS']}, stdin: {os.read(0, 1)!r}"
        )


class Grow(Honest):
    def suggest(self, request: AskRequest) -> list[Assignment]:
        held = bytearray(os.urandom(1)) * (400 * 2**20)
        time.sleep(600)
        raise AssertionError(len(held))


class Hang(Honest):
    def suggest(self, request: AskRequest) -> list[Assignment]:
        time.sleep(3600)
        raise AssertionError


class HangWithHelper(Honest):
    """Hangs behind a process of its own, whose id it writes to $HELPER_PID."""

    def suggest(self, request: AskRequest) -> list[Assignment]:
        helper = subprocess.Popen(["sleep", "3600"])
        part = Path(os.environ["HELPER_PID"] + ".part")
        part.write_text(str(helper.pid))
        part.rename(os.environ["HELPER_PID"])
        helper.wait()
        raise AssertionError


class HangLater(Honest):
    """Answers the first ask only."""

    def suggest(self, request: AskRequest) -> list[Assignment]:
        if request.first > 0:
            time.sleep(3600)
        return super().suggest(request)


class Raise(Honest):
    def suggest(self, request: AskRequest) -> list[Assignment]:
        raise ZeroDivisionError("no covariance left")


class RefuseToBuild:
    def __init__(self, study: Study) -> None:
        raise RuntimeError("no such kernel")


class Compiling(Honest):
    """Spends ten seconds on compiling ahead, once, and half a second before each answer."""

    ahead = 10.0

    def prepare(self, request: AskRequest, interrupted: Callable[[], bool]) -> None:
        now = time.monotonic()
        self.clock.add(now - self.ahead, now)
        self.ahead = 0.0

    def suggest(self, request: AskRequest) -> list[Assignment]:
        time.sleep(0.5)
        now = time.monotonic()
        self.clock.add(now - 0.5, now)
        return super().suggest(request)


class Interruptible(Honest):
    """Prepares until it is interrupted, and tells in `n` whether it has ever been."""

    def __init__(self, study: Study) -> None:
        super().__init__(study)
        self.interrupted = False

    def prepare(self, request: AskRequest, interrupted: Callable[[], bool]) -> None:
        while not interrupted():
            time.sleep(0.01)
        self.interrupted = True

    def suggest(self, request: AskRequest) -> list[Assignment]:
        n = 4 if self.interrupted else 1
        return [assignment | {"n": n} for assignment in super().suggest(request)]


class SlowSuccessor(Honest):
    """Never prepared: neither when asked to be, nor after it has answered."""

    def prepare(self, request: AskRequest, interrupted: Callable[[], bool]) -> None:
        while not interrupted():
            time.sleep(0.01)


class BadSuccessor(Honest):
    """Cannot be prepared before its first answer."""

    answered = False

    def prepare(self, request: AskRequest, interrupted: Callable[[], bool]) -> None:
        if not self.answered:
            raise MemoryError("no room for a successor")

    def suggest(self, request: AskRequest) -> list[Assignment]:
        self.answered = True
        return super().suggest(request)


class Exit(Honest):
    def suggest(self, request: AskRequest) -> list[Assignment]:
        os._exit(7)


class Killed(Honest):
    def suggest(self, request: AskRequest) -> list[Assignment]:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Garbage(Honest):
    """Writes to every descriptor that it may have."""

    text = b"Segmentation fault in some library, core dumped"

    def suggest(self, request: AskRequest) -> list[Assignment]:
        for descriptor in range(3, 20):
            with contextlib.suppress(OSError):
                os.write(descriptor, self.text)
        time.sleep(3600)
        raise AssertionError


class FramedGarbage(Garbage):
    text = b"\x00\x00\x00\x05[1, 2"


class FramedNonsense(Garbage):
    text = b"\x00\x00\x00\x04null"


class NotANumber(Honest):
    def suggest(self, request: AskRequest) -> list[Assignment]:
        return [*super().suggest(request)[1:], {"x": math.nan, "n": 1}]


class OutOfRange(Honest):
    def suggest(self, request: AskRequest) -> list[Assignment]:
        return [*super().suggest(request)[1:], {"x": 1.5, "n": 1}]


class Unlisted(Honest):
    def suggest(self, request: AskRequest) -> list[Assignment]:
        return [*super().suggest(request)[1:], {"x": 0.5, "n": 3}]


class Missing(Honest):
    def suggest(self, request: AskRequest) -> list[Assignment]:
        return [{"x": 0.5} for _ in range(request.count)]


class TooFew(Honest):
    def suggest(self, request: AskRequest) -> list[Assignment]:
        return super().suggest(request)[1:]


class NoMapping(Honest):
    def suggest(self, request: AskRequest) -> list[Assignment]:
        return [0.5] * request.count  # type: ignore[list-item]  # The mistake under test.
