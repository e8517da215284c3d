"""Who runs a sweep: the name and the lease of a process, and whether another process has died."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from pathlib import Path
from typing import Final

import psutil

from spica_async.journal.port import Journal, Lease, SweepTakenError

LEASE_SECONDS: Final = 30.0
"""How long a sweep stays a coordinator's from its last sign of life."""

_PROC: Final = Path("/proc")


def new_lease() -> Lease:
    """A lease for this process."""
    return Lease(this_owner(), LEASE_SECONDS)


async def take(journal: Journal, sweep_id: str, lease: Lease) -> None:
    """Take a sweep over, at once where its coordinator is known to have died.

    Raises:
        SweepUnknownError: there is none of that name.
        SweepTakenError: somebody else runs it, or may do so.
    """
    try:
        await journal.take(sweep_id, lease)
    except SweepTakenError as error:
        if not is_dead(error.owner):
            raise
        await journal.take(sweep_id, lease, instead_of=error.owner)


def this_owner() -> str:
    """A name for this process that no other has, e.g. `host:4211#5d1f09c2-9f3a07c1`.

    It holds the host, the process id, what that is valid in (see `_namespace`), and a random part.
    """
    try:
        namespace = _namespace()
    except OSError:
        namespace = "unknown"  # Not Linux: others wait for the end of the lease.
    return f"{socket.gethostname()}:{os.getpid()}#{namespace}-{secrets.token_hex(4)}"


def is_dead(owner: str) -> bool:
    """Whether a process of that name is known to have died.

    That is known only where its id means the same process to us. An id that another process has by
    now seems alive: then its lease has to run out.
    """
    _, _, rest = owner.rpartition(":")
    number, _, identity = rest.partition("#")
    try:
        pid = int(number)
        # Older versions write a third part between the two.
        if pid <= 0 or identity.partition("-")[0] != _namespace():
            return False
        # Also where the processes of other users are hidden, as with hidepid=2.
        if not psutil.pid_exists(pid):
            return True
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except (OSError, OverflowError, ValueError, psutil.Error):
        return False


def _namespace() -> str:
    """What process ids are valid in: this boot of this host, and the container or none."""
    boot = (_PROC / "sys/kernel/random/boot_id").read_text()
    space = os.readlink(_PROC / "self/ns/pid")  # noqa: PTH115  # no path, but a name in brackets
    return hashlib.sha256(f"{boot}/{space}".encode()).hexdigest()[:8]
