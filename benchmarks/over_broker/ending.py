"""How a process of a measurement learns that it is to end."""

from __future__ import annotations

import asyncio
import signal
import sys


def when_told() -> asyncio.Event:
    """An event that is set by SIGTERM, and when stdin ends: nobody measures any more."""
    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    stdin = sys.stdin.fileno()

    def stdin_ended() -> None:
        loop.remove_reader(stdin)
        told.set()

    loop.add_signal_handler(signal.SIGTERM, told.set)
    loop.add_reader(stdin, stdin_ended)
    return told
