"""A child process's side of the channel to the program that started it; see `child`."""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
import time
from dataclasses import dataclass
from typing import BinaryIO, Final

HEADER_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Message:
    """What the parent has sent.

    Attributes:
        payload: The content of one frame.
        arrived: When it was read, as a monotonic time in seconds.
    """

    payload: bytes
    arrived: float


class Parent:
    """The program that started this process: sends requests, is sent answers.

    This process and its group end as soon as the parent does, whatever they are doing by then.

    Made once, before anything else is read or written: it takes the channel away from stdin, so
    that no library reads from it and nothing that is started here holds it open.
    """

    def __init__(self) -> None:
        # Ctrl-C in a terminal is for the parent, which then ends this process itself.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._channel = socket.socket(fileno=os.dup(0))
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 0)
        os.close(nowhere)
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def has_sent(self) -> bool:
        """Whether a message waits to be received."""
        return not self._messages.empty()

    def receive(self) -> Message:
        """Wait for the next message. Without one more to come, this process ends."""
        return self._messages.get()

    def send(self, payload: bytes) -> None:
        """Send one frame."""
        self._channel.sendall(frame(payload))

    def _listen(self) -> None:
        """Read what the parent sends, in a thread, since it may end during a long computation."""
        try:
            with self._channel.makefile("rb") as frames:
                while (payload := _read_frame(frames)) is not None:
                    self._messages.put(Message(payload, time.monotonic()))
        finally:
            # Takes along what was started here.
            os.killpg(os.getpgrp(), signal.SIGKILL)


def _read_frame(frames: BinaryIO) -> bytes | None:
    header = frames.read(HEADER_BYTES)
    if len(header) < HEADER_BYTES:
        return None
    return frames.read(payload_length(header))


def frame(payload: bytes) -> bytes:
    """The payload behind its length."""
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


def payload_length(header: bytes) -> int:
    """The payload's length in bytes, read from a frame's header."""
    return int.from_bytes(header, "big")
