"""Who is known to have died, and who may live although little can be seen of him."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spica_async.journal import owner as owner_module
from spica_async.journal.owner import is_dead, this_owner

BOOT = "sys/kernel/random/boot_id"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that lives until it is killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def owner_of(pid: int) -> str:
    """The name that a process of ours would give itself."""
    ticks = owner_module._start_ticks(pid)
    return f"host:{pid}#{owner_module._namespace()}-{ticks}-9f3a"


def changed(owner: str, **parts: object) -> str:
    """A name with other parts: `pid`, `namespace` or `start`."""
    host, _, rest = owner.rpartition(":")
    pid, _, identity = rest.partition("#")
    namespace, start, random = identity.split("-")
    told = {"pid": pid, "namespace": namespace, "start": start} | parts
    return f"{host}:{told['pid']}#{told['namespace']}-{told['start']}-{random}"


def proc_without_processes(folder: Path) -> Path:
    """What of /proc is left where processes of others are hidden."""
    boot = folder / BOOT
    boot.parent.mkdir(parents=True)
    boot.write_text(Path("/proc", BOOT).read_text())
    namespace = folder / "self/ns/pid"
    namespace.parent.mkdir(parents=True)
    namespace.symlink_to(os.readlink("/proc/self/ns/pid"))  # noqa: PTH115  # it names no path
    return folder


@pytest.fixture
def hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process can be seen, as with hidepid=2."""
    monkeypatch.setattr(owner_module, "_PROC", proc_without_processes(tmp_path / "proc"))


def test_names_differ_and_we_are_alive() -> None:
    assert this_owner() != this_owner()
    assert not is_dead(this_owner())


def test_a_process_is_dead_once_it_has_ended(child: subprocess.Popen[bytes]) -> None:
    owner = owner_of(child.pid)
    assert not is_dead(owner)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(owner), "although nobody has asked how it ended"
    child.wait()
    assert is_dead(owner)


def test_an_id_that_another_process_has_by_now() -> None:
    ticks = owner_module._start_ticks(os.getpid())
    assert ticks is not None
    assert is_dead(changed(this_owner(), start=ticks - 1))


def test_of_another_boot_or_namespace_nothing_is_known(child: subprocess.Popen[bytes]) -> None:
    owner = changed(owner_of(child.pid), namespace="01234567")
    child.kill()
    child.wait()
    assert not is_dead(owner)


@pytest.mark.usefixtures("hidden")
def test_one_that_is_hidden_lives(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(owner_module, "_PROC", Path("/proc"))
        owner = owner_of(child.pid)
    assert not is_dead(owner)
    child.kill()
    child.wait()
    assert is_dead(owner)


@pytest.mark.usefixtures("hidden")
def test_one_that_is_hidden_and_somebody_elses_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int, _number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert not is_dead(f"host:4211#{owner_module._namespace()}-1-9f3a")


def test_without_proc_nothing_is_known(
    child: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = owner_of(child.pid)
    child.kill()
    child.wait()
    monkeypatch.setattr(owner_module, "_PROC", tmp_path / "nothing")
    assert not is_dead(owner)
    assert "#unknown-" in this_owner()
    assert not is_dead(this_owner())


@pytest.mark.parametrize("pid", ["", "x", "0", "-1", "1.5", "9" * 30])
def test_an_id_that_is_none(pid: str) -> None:
    assert not is_dead(changed(this_owner(), pid=pid))


@pytest.mark.parametrize("start", ["", "x", "None"])
def test_a_start_that_is_none(start: str) -> None:
    assert not is_dead(changed(this_owner(), start=start))


@pytest.mark.parametrize(
    "owner", ["", "me", "host:1", "host:#", "host:1#", "host:1#a-b", "host:1#a-1-c-d", "#:#", "\0"]
)
def test_a_name_that_is_none_of_ours(owner: str) -> None:
    assert not is_dead(owner)
