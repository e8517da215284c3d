"""What a container allows, read from files as the kernel writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

import psutil
import pytest

from spica_async.errors import InputError
from spica_async.processes import container
from spica_async.processes.container import (
    allowed_cores,
    available_memory,
    parse_cpu_max,
    parse_group,
    parse_memory,
)
from spica_async.processes.memory import free_memory
from workers import settings

MIB = 2**20
V1_UNLIMITED = "9223372036854771712"
V1_GROUPS = "9:name=systemd:/\n4:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n0::/\n"


@pytest.mark.parametrize(
    ("limit", "usage", "statistics", "room"),
    [
        ("max", "100", "", None),
        ("", "", "", None),
        (V1_UNLIMITED, "100", "", None),
        ("1000", "", "", None),
        ("1000", "400", "", 600),
        ("1000", "400", "anon 5\ninactive_file 300\nactive_file 7", 900),
        ("1000", "400", "inactive_file 300\ntotal_inactive_file 350", 950),
        ("1000", "1400", "inactive_file 10", 0),
    ],
)
def test_the_memory_that_is_left(limit: str, usage: str, statistics: str, room: int | None) -> None:
    assert parse_memory(limit, usage, statistics) == room


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000", None),
        ("-1 100000", None),
        ("", None),
        (" ", None),
        ("50000 0", None),
        ("50000 100000", 0.5),
        ("250000 100000", 2.5),
    ],
)
def test_the_cores_of_a_quota(text: str, cores: float | None) -> None:
    assert parse_cpu_max(text) == cores


def test_the_group_of_a_controller() -> None:
    assert parse_group(V1_GROUPS, "memory") == PurePosixPath("/docker/abc")
    assert parse_group(V1_GROUPS, "cpu") == PurePosixPath("/docker/abc")
    assert parse_group(V1_GROUPS, "") == PurePosixPath("/")
    assert parse_group("0::/user.slice/a:b.scope", "") == PurePosixPath("/user.slice/a:b.scope")
    assert parse_group("", "memory") == PurePosixPath("/")


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str, Mapping[str, str]], Path]:
    """Makes the files that the kernel would show, and returns their root."""

    def make(groups: str, files: Mapping[str, str]) -> Path:
        for name, text in {"proc/self/cgroup": groups, **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return tmp_path

    return make


Machine = Callable[[str, Mapping[str, str]], Path]


def test_the_tightest_of_nested_groups_counts(machine: Machine) -> None:
    root = machine(
        "0::/pod/box",
        {
            "sys/fs/cgroup/pod/box/memory.max": "max",
            "sys/fs/cgroup/pod/box/memory.current": "100",
            "sys/fs/cgroup/pod/box/cpu.max": "max 100000",
            "sys/fs/cgroup/pod/memory.max": "1000",
            "sys/fs/cgroup/pod/memory.current": "300",
            "sys/fs/cgroup/pod/memory.stat": "inactive_file 50",
            "sys/fs/cgroup/pod/cpu.max": "150000 100000",
            "sys/fs/cgroup/memory.max": "10000",
            "sys/fs/cgroup/memory.current": "300",
            "sys/fs/cgroup/cpu.max": "400000 100000",
        },
    )
    assert available_memory(root) == 750
    assert allowed_cores(root) == 1.5


def test_inside_a_container_of_version_2(machine: Machine) -> None:
    root = machine(
        "0::/",
        {
            "sys/fs/cgroup/memory.max": "1000",
            "sys/fs/cgroup/memory.current": "100",
            "sys/fs/cgroup/cpu.max": "200000 100000",
        },
    )
    assert (available_memory(root), allowed_cores(root)) == (900, 2.0)


def test_inside_a_container_of_version_1_whose_paths_are_the_hosts(machine: Machine) -> None:
    root = machine(
        V1_GROUPS,
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "1000",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "600",
            "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 100",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
        },
    )
    assert (available_memory(root), allowed_cores(root)) == (500, 3.0)


def test_version_1_without_limits(machine: Machine) -> None:
    root = machine(
        V1_GROUPS,
        {
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": V1_UNLIMITED,
            "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": "600",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000",
        },
    )
    assert (available_memory(root), allowed_cores(root)) == (None, None)


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert (available_memory(tmp_path), allowed_cores(tmp_path)) == (None, None)


class TestShares:
    def test_a_containers_memory_counts_if_it_is_less_than_the_machines(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(container, "available_memory", lambda: 1000 * MIB)
        assert free_memory() == 900 * MIB
        assert settings.checked_slots(None) == 1
        with pytest.raises(InputError, match=r"is enough for 1$"):
            settings.checked_slots(2)
        monkeypatch.setattr(container, "available_memory", lambda: 2**60)
        assert free_memory() <= psutil.virtual_memory().total

    @pytest.mark.parametrize(
        ("quota", "slots"), [(None, 4), (0.5, 1), (1.9, 1), (2.5, 2), (64.0, 4)]
    )
    def test_a_containers_quota_is_rounded_down(
        self, monkeypatch: pytest.MonkeyPatch, quota: float | None, slots: int
    ) -> None:
        monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
        monkeypatch.setattr(container, "allowed_cores", lambda: quota)
        assert settings.default_slots() == slots
