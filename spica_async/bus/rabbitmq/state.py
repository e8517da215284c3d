"""How a bus stands with its broker, put together from all that it notices."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum


class BusState(StrEnum):
    """How a bus stands with its broker."""

    CONNECTING = "connecting"
    """The broker cannot be reached; attempts go on."""
    CONNECTED = "connected"
    BLOCKED = "blocked"
    """It does not answer for now, normally since its memory or its disk is short."""


OnState = Callable[[BusState, str], None]
"""Called with a new state, and why, in one line for a person."""

_BLOCKED = "it does not answer; is its memory or its disk short?"


class StateReport:
    """Puts the states of connections and verbs together, and reports each change once."""

    def __init__(self, on_state: OnState | None) -> None:
        self._on_state = on_state
        self._lost: dict[str, str] = {}
        self._slow = 0
        self._reported: tuple[BusState, str] | None = None

    def of(self, link: str) -> OnState:
        """The listener for the state of the named connection."""

        def report(state: BusState, why: str) -> None:
            if state is BusState.CONNECTED:
                self._lost.pop(link, None)
            else:
                self._lost[link] = why
            self._report()

        self._lost[link] = "not tried yet"
        return report

    @contextmanager
    def slow_after(self, delay_seconds: float) -> Iterator[None]:
        """Count the broker as blocked when what is done in the context takes longer than that."""
        began = False

        def begin() -> None:
            nonlocal began
            began = True
            self._slow += 1
            self._report()

        timer = asyncio.get_running_loop().call_later(delay_seconds, begin)
        try:
            yield
        except BaseException:
            # To give up is no sign that it is over: the next success reports that.
            self._slow -= began
            raise
        finally:
            timer.cancel()
        self._slow -= began
        if self._reported != (BusState.CONNECTED, ""):
            self._report()

    def _report(self) -> None:
        state, why = BusState.CONNECTED, ""
        if self._lost:
            state, why = BusState.CONNECTING, next(iter(self._lost.values()))
        elif self._slow:
            state, why = BusState.BLOCKED, _BLOCKED
        if (state, why) != self._reported:
            self._reported = (state, why)
            if self._on_state is not None:
                self._on_state(state, why)
