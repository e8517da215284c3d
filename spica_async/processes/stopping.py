"""Requests to stop: one object that the requester and the work share, and signals as requests."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Mapping
from enum import StrEnum
from typing import Any, Final

from spica_async.errors import first_cause
from spica_async.states import moved


class StopState(StrEnum):
    """How work stands to a request to stop it."""

    PREPARING = "preparing"
    """There is nothing to finish yet: a request cuts the work off."""
    WORKING = "working"
    """A request is looked at, and the work then ends in good order."""
    STOPPING = "stopping"
    """A stop was requested, and the work is ending in good order."""
    CUT_OFF = "cut off"
    """The task was cancelled, and ends as soon as it can."""


TRANSITIONS: Final[Mapping[StopState, frozenset[StopState]]] = {
    StopState.PREPARING: frozenset({StopState.WORKING, StopState.CUT_OFF}),
    StopState.WORKING: frozenset({StopState.STOPPING}),
    StopState.STOPPING: frozenset({StopState.CUT_OFF}),
    StopState.CUT_OFF: frozenset(),
}


class Stop:
    """A request to stop one piece of work.

    Args:
        state: `WORKING` where the work is begun in order to be stopped in good order.

    Attributes:
        state: how far the request has come.
        requested: set from the first request on; `request` and `cut_off` set it, nobody else.
    """

    def __init__(self, state: StopState = StopState.PREPARING) -> None:
        self.state = state
        self.requested = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None

    def attach(self, task: asyncio.Task[Any]) -> None:
        """Name the task that does the work; it is cancelled where the work is cut off."""
        self._task = task

    def ready(self) -> None:
        """The work looks at `requested` from now on."""
        if self.state is StopState.PREPARING:
            self._move(StopState.WORKING)

    def request(self) -> None:
        """Have the work end: in good order if it is `ready`, else at once. Once is enough."""
        if self.state is StopState.WORKING:
            self._move(StopState.STOPPING)
        elif self.state is StopState.PREPARING:
            self.cut_off()
        self.requested.set()

    def cut_off(self) -> None:
        """Have the work end at once; each call cancels its task."""
        if self.state is StopState.WORKING:
            self._move(StopState.STOPPING)
        if self.state is not StopState.CUT_OFF:
            self._move(StopState.CUT_OFF)
        self.requested.set()
        if self._task is not None:
            self._task.cancel()

    def _move(self, state: StopState) -> None:
        self.state = moved("a stop", TRANSITIONS, self.state, state)


class Interrupts:
    """Requests a stop at a first signal, and cuts the work off at a second one.

    Attributes:
        stop: of what the program does.
        exit_code: 0, or after a second signal 128 and its number.
    """

    def __init__(self, stop: Stop | None = None) -> None:
        self.stop = stop or Stop()
        self.exit_code = 0

    def run(self, work: Coroutine[Any, Any, None]) -> int:
        """Run a program's work, which calls `listen`, in a loop of its own.

        Returns:
            The exit code.
        """
        try:
            asyncio.run(work)
        except asyncio.CancelledError:
            return self.exit_code
        except BaseExceptionGroup as group:
            raise first_cause(group) from group
        return 0

    def listen(self, *numbers: signal.Signals) -> None:
        """Take these signals from now on, on behalf of the current task.

        The end of the terminal stays without effect on a program that was started with `nohup`.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # for the type checker: this is called by a task
        self.stop.attach(task)
        for number in numbers:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt, number)

    def _interrupt(self, number: signal.Signals) -> None:
        if self.stop.requested.is_set():
            self.exit_code = 128 + number
            self.stop.cut_off()
        else:
            self.stop.request()
