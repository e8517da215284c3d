"""What signals do to a program that has something to finish when it is told to end."""

from __future__ import annotations

import asyncio
import signal


class Interrupts:
    """Ends a task in good order at a first signal, and at once at a second one.

    While `can_stop` is not set there is nothing to finish yet, and a first signal cancels the
    task, too.

    Attributes:
        stop: set by the first signal.
        can_stop: for the task to set, as soon as it looks at `stop`.
        exit_code: 0, or after a second signal 128 and its number.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.can_stop = False
        self.exit_code = 0
        self._task: asyncio.Task[object] | None = None

    def listen(self, *numbers: signal.Signals) -> None:
        """Take these signals from now on, on behalf of the current task.

        The end of the terminal stays without effect for who was started with `nohup`.
        """
        self._task = asyncio.current_task()
        for number in numbers:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt, number)

    def _interrupt(self, number: signal.Signals) -> None:
        assert self._task is not None  # noqa: S101 - for the type checker; set before the handlers
        if self.stop.is_set():
            self.exit_code = 128 + number
        if self.stop.is_set() or not self.can_stop:
            self._task.cancel()
        self.stop.set()
