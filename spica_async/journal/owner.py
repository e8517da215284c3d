"""The name under which a process runs sweeps, from which others can tell that it has died."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from pathlib import Path

_PROC = Path("/proc")


def this_owner() -> str:
    """A name for this process that no other has, e.g. `host:4211#5d1f09c2-8821341-9f3a`.

    It holds the host and the process id, and then what tells processes of one id apart: the boot
    and the id's namespace, the process's start in ticks of that boot, and a random part.
    """
    pid = os.getpid()
    try:
        identity = f"{_namespace()}-{_start_ticks(pid)}"
    except OSError:
        identity = "unknown"  # Not Linux: others wait for the end of the lease.
    return f"{socket.gethostname()}:{pid}#{identity}-{secrets.token_hex(2)}"


def is_dead(owner: str) -> bool:
    """Whether a process of that name is known to have died.

    That is known only where its id would mean the same process to us: on the same host since the
    same boot, and in the same namespace.
    """
    try:
        _, _, rest = owner.rpartition(":")
        pid, _, identity = rest.partition("#")
        namespace, start, _ = identity.split("-")
        number, ticks = int(pid), int(start)
        if number <= 0 or namespace != _namespace():
            return False
    except (OSError, ValueError):
        return False
    return _has_ended(number, ticks)


def _has_ended(pid: int, start_ticks: int) -> bool:
    """Whether the process of that id that started then is known to have ended."""
    try:
        return _start_ticks(pid) != start_ticks
    except FileNotFoundError:
        # Others' processes may be hidden from us, as with hidepid=2.
        return not _exists(pid)
    except (OSError, ValueError):
        return False


def _exists(pid: int) -> bool:
    """Whether there is a process of that id, also one that is hidden; True if in doubt."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def _namespace() -> str:
    boot = (_PROC / "sys/kernel/random/boot_id").read_text()
    space = os.readlink(_PROC / "self/ns/pid")  # noqa: PTH115  # no path, but a name in brackets
    return hashlib.sha256(f"{boot}/{space}".encode()).hexdigest()[:8]


def _start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since the boot; see proc(5), field 22 of stat.

    Returns:
        None if it has ended and nobody has asked how.

    Raises:
        FileNotFoundError: there is none of that id, or it is hidden.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except ProcessLookupError as error:
        raise FileNotFoundError(str(error)) from error
    # The second field is a name in brackets, which may hold anything.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])
