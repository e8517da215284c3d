"""What child processes of ours have in common: framed pipes and an environment.

A frame is a four-byte big-endian length and then the payload.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Final

HEADER_BYTES: Final = 4
_BROKER_VARIABLES: Final = "SPICA_BUS"


def frame(payload: bytes) -> bytes:
    """The payload behind its length."""
    return len(payload).to_bytes(HEADER_BYTES, "big") + payload


def payload_length(header: bytes) -> int:
    """The payload's length in bytes, read from a frame's header."""
    return int.from_bytes(header, "big")


def take_standard_streams() -> tuple[BinaryIO, BinaryIO]:
    """Move stdin and stdout away, so that no library's output gets between the frames."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    return requests, answers


def exit_with_parent(requests: BinaryIO) -> None:
    """End this process as soon as the parent closes its end, whatever it is doing by then."""

    def wait_for_end() -> None:
        while requests.read(HEADER_BYTES):
            pass
        os._exit(0)

    threading.Thread(target=wait_for_end, daemon=True).start()


def child_environment(import_paths: Iterable[str] = (), **variables: str) -> dict[str, str]:
    """This process's environment for a child that imports just as it does, on one thread.

    Args:
        import_paths: searched before this process's own `sys.path`.
        variables: set beside those, or instead.
    """
    # An empty entry of sys.path stands for the current folder.
    own_paths = (path or str(Path.cwd()) for path in sys.path)
    # Where the broker is and the password for it are no business of whatever a child loads.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_BROKER_VARIABLES)}
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join([*import_paths, *own_paths]),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        **variables,
    }
