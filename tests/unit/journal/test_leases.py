"""Who is known to have died, and who may live although little can be seen of him."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from spica_async.journal.leases import is_dead, this_owner


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def owner_of(pid: object, *, namespace: str | None = None, rest: str = "9f3a07c1") -> str:
    """The name that another process of ours would have."""
    ours = this_owner().partition("#")[2].partition("-")[0]
    return f"host:{pid}#{namespace or ours}-{rest}"


def test_names_differ_and_we_are_alive() -> None:
    assert this_owner() != this_owner()
    assert not is_dead(this_owner())


@pytest.mark.parametrize("rest", ["9f3a07c1", "8821341-9f3a"])
def test_a_process_is_dead_once_it_has_ended(child: subprocess.Popen[bytes], rest: str) -> None:
    """Also by a name that an older version has written, with three parts."""
    owner = owner_of(child.pid, rest=rest)
    assert not is_dead(owner)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(owner), "although nobody has asked how it ended"
    child.wait()
    assert is_dead(owner)


def test_of_another_boot_or_namespace_nothing_is_known(child: subprocess.Popen[bytes]) -> None:
    owner = owner_of(child.pid, namespace="01234567")
    child.kill()
    child.wait()
    assert not is_dead(owner)


def test_one_that_is_hidden_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with hidepid=2: a signal reaches it, and nothing of it can be read."""

    def hide(pid: int) -> None:
        raise psutil.NoSuchProcess(pid)

    monkeypatch.setattr(psutil, "Process", hide)
    assert not is_dead(owner_of(os.getpid()))


@pytest.mark.parametrize("pid", ["", "x", "0", "-1", "1.5", "9" * 30])
def test_an_id_that_is_none(pid: str) -> None:
    assert not is_dead(owner_of(pid))


@pytest.mark.parametrize("owner", ["", "me", "host:1", "host:#", "host:1#", "host:1#a-b", "\0"])
def test_a_name_that_is_none_of_ours(owner: str) -> None:
    assert not is_dead(owner)
