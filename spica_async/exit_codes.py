"""What the programs exit with, beside 0."""

from __future__ import annotations

from typing import Final

EXIT_FAULT: Final = 1
EXIT_BAD_INPUT: Final = 2
EXIT_NOTHING_FOUND: Final = 3
EXIT_INTERRUPTED: Final = 130

_OF_SWEEPS: Final = {
    "nothing_feasible": EXIT_NOTHING_FOUND,
    "failed": EXIT_FAULT,
    "cancelled": EXIT_INTERRUPTED,
    "interrupted": EXIT_INTERRUPTED,
    "paused": EXIT_INTERRUPTED,
}


def sweep_exit_code(state: str, *, useful: bool) -> int:
    """The exit code of a command that has seen a sweep end.

    Args:
        state: the sweep's.
        useful: whether it found a deployment that serves the goal.
    """
    if state == "time_limit" and not useful:
        return EXIT_NOTHING_FOUND
    return _OF_SWEEPS.get(state, 0)
