"""What signals do to a program that has something to finish when it is told to end."""

from __future__ import annotations

import asyncio
import signal

from spica_async.processes.stopping import Stop


class Interrupts:
    """Requests a stop at a first signal, and cuts the work off at a second one.

    Attributes:
        stop: of what the program does.
        exit_code: 0, or after a second signal 128 and its number.
    """

    def __init__(self, stop: Stop | None = None) -> None:
        self.stop = stop or Stop()
        self.exit_code = 0

    def listen(self, *numbers: signal.Signals) -> None:
        """Take these signals from now on, on behalf of the current task.

        The end of the terminal stays without effect for who was started with `nohup`.
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
