"""Where one run of a sweep stands."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class RunState(StrEnum):
    """Where a run stands; `ENDED` is final."""

    RESTORING = "restoring"
    """What earlier runs have found is worked out again."""
    STARTING = "starting"
    """Its start is being written, and queues and companions are opened."""
    SEARCHING = "searching"
    """Branches propose and evaluate."""
    WINDING_DOWN = "winding down"
    """Nothing more is proposed; what runs has its grace."""
    ENDING = "ending"
    """Its end is being written."""
    ENDED = "ended"


TRANSITIONS: Final[Mapping[RunState, frozenset[RunState]]] = {
    RunState.RESTORING: frozenset({RunState.STARTING}),
    RunState.STARTING: frozenset({RunState.SEARCHING, RunState.ENDING}),
    RunState.SEARCHING: frozenset({RunState.WINDING_DOWN, RunState.ENDING}),
    RunState.WINDING_DOWN: frozenset({RunState.ENDING}),
    RunState.ENDING: frozenset({RunState.ENDED}),
    RunState.ENDED: frozenset(),
}
