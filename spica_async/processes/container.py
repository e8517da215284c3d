"""What the container around this process allows: its control groups' limits, whichever version.

A limit holds for all groups below it, so every group from our own up to the root is asked. Inside
a container the paths that the kernel names may not exist; what is mounted as the root is then the
container's own group, and that one is always asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_NO_LIMIT_BYTES = 2**62
"""Version 1 says "no limit" as the largest multiple of a page, which is above this."""


def available_memory(root: Path = Path("/")) -> int | None:
    """The bytes that the tightest group still has free; None without a limit.

    Pages of files that were not used lately count as free, since the kernel takes them back.
    """
    rooms = [
        parse_memory(*(_read(group / name) for name in names))
        for group, names in _memory_groups(root)
    ]
    return min((room for room in rooms if room is not None), default=None)


def allowed_cores(root: Path = Path("/")) -> float | None:
    """How many cores' worth of time the tightest group allows; None without a limit."""
    quotas = [parse_cpu_max(_read(group / "cpu.max")) for group in _groups(root, "")]
    for group in _groups(root, "cpu"):
        quota = _read(group / "cpu.cfs_quota_us")
        quotas.append(parse_cpu_max(f"{quota} {_read(group / 'cpu.cfs_period_us')}"))
    return min((quota for quota in quotas if quota is not None), default=None)


def parse_memory(limit: str, usage: str, statistics: str) -> int | None:
    """The bytes that a group has left, never below 0; None when it has no limit.

    Args:
        limit: of `memory.max`, or `memory.limit_in_bytes` in version 1.
        usage: of `memory.current`, or `memory.usage_in_bytes`.
        statistics: of `memory.stat`, lines of a name and a number.
    """
    if not limit.isdigit() or not usage.isdigit() or int(limit) >= _NO_LIMIT_BYTES:
        return None
    numbers = dict(line.split(maxsplit=1) for line in statistics.splitlines() if " " in line)
    # Version 1 counts this group alone without the prefix, of all below it with it.
    idle = numbers.get("total_inactive_file", numbers.get("inactive_file", "0"))
    return max(0, int(limit) - int(usage) + int(idle))


def parse_cpu_max(text: str) -> float | None:
    """The cores' worth of time in `<quota> <period>`, microseconds both; None when unlimited."""
    quota, _, period = text.partition(" ")
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def parse_group(text: str, controller: str) -> PurePosixPath:
    """Our group's path in `/proc/self/cgroup`, `/` if it has none.

    Args:
        text: lines of `<number>:<controllers>:<path>`.
        controller: of version 1; the empty text is version 2's.
    """
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return PurePosixPath(path)
    return PurePosixPath("/")


def _memory_groups(root: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    for group in _groups(root, ""):
        yield group, ("memory.max", "memory.current", "memory.stat")
    for group in _groups(root, "memory"):
        yield group, ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Our group and those around it; a controller of version 1 is mounted under its name."""
    mounted = root / "sys/fs/cgroup" / controller
    path = parse_group(_read(root / "proc/self/cgroup"), controller)
    for group in (path, *path.parents):
        yield mounted / group.relative_to("/")


def _read(path: Path) -> str:
    """What a file of the kernel says, nothing if there is no such file."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
