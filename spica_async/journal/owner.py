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
        if namespace != _namespace():
            return False
        return start != str(_start_ticks(int(pid)))
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False


def _namespace() -> str:
    boot = (_PROC / "sys/kernel/random/boot_id").read_text()
    space = os.readlink(_PROC / "self/ns/pid")  # noqa: PTH115  # no path, but a name in brackets
    return hashlib.sha256(f"{boot}/{space}".encode()).hexdigest()[:8]


def _start_ticks(pid: int) -> int:
    """When a process started, in clock ticks since the boot; see proc(5), field 22 of stat.

    Raises:
        FileNotFoundError: there is none of that id, or it has ended and nobody has asked how.
    """
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except ProcessLookupError as error:
        raise FileNotFoundError(str(error)) from error
    # The second field is a name in brackets, which may hold anything.
    fields = text.rpartition(")")[2].split()
    if fields[0] in {"Z", "X"}:
        raise FileNotFoundError(f"process {pid} has ended")
    return int(fields[19])
