"""The time that an optimizer process spends on compiling."""

from __future__ import annotations

import time

# JAX reports a program's way from Python to the processor under names that begin like this, and
# the last part of that way, to compile it or to load what was compiled, under this one.
_PROGRAM = "/jax/core/compile/"
_LAST_PART = "/jax/core/compile/backend_compile_duration"


class CompileClock:
    """Adds up the time spent on tracing, lowering and compiling, or on loading what was compiled.

    JAX reports each duration at its end, so the inner ones of a nested call before the outer one.
    All of them must come from one thread.

    Attributes:
        programs: programs compiled or loaded so far.
    """

    def __init__(self) -> None:
        self.programs = 0
        self._settled = 0.0
        self._spans: list[tuple[float, float]] = []

    def listen(self, event: str, duration: float, **_: str | int) -> None:
        """Takes in what JAX's monitoring reports: an event and its duration in seconds."""
        if event.startswith(_PROGRAM):
            self.programs += event == _LAST_PART
            end = time.monotonic()
            self.add(end - duration, end)

    def add(self, start: float, end: float) -> None:
        """Takes in one span between two monotonic times; it takes the place of those within it."""
        while self._spans and self._spans[-1][0] >= start:
            self._spans.pop()
        if self._spans:
            start = max(start, self._spans[-1][1])
        if start < end:
            self._spans.append((start, end))

    def seconds(self) -> float:
        """Returns the seconds spent so far."""
        return self._settled + self.seconds_since(0.0)

    def seconds_since(self, moment: float) -> float:
        """Returns the seconds spent after a monotonic time no earlier than the last `settle`."""
        return sum(max(0.0, end - max(start, moment)) for start, end in self._spans)

    def settle(self) -> None:
        """Forgets when the time was spent, but not how much it was."""
        self._settled = self.seconds()
        self._spans.clear()
