"""Where one run of a sweep stands."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
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


TRANSITIONS: Final[Mapping[RunState, frozenset[RunState]]] = MappingProxyType(
    {
        RunState.RESTORING: frozenset({RunState.STARTING}),
        RunState.STARTING: frozenset({RunState.SEARCHING, RunState.ENDING}),
        RunState.SEARCHING: frozenset({RunState.WINDING_DOWN, RunState.ENDING}),
        RunState.WINDING_DOWN: frozenset({RunState.ENDING}),
        RunState.ENDING: frozenset({RunState.ENDED}),
        RunState.ENDED: frozenset(),
    }
)


class RunLife:
    """The state of one run, which only moves as `TRANSITIONS` allows."""

    def __init__(self) -> None:
        self.state = RunState.RESTORING

    @property
    def is_ending(self) -> bool:
        """Whether its end is being written, or was."""
        return self.state in {RunState.ENDING, RunState.ENDED}

    def move(self, state: RunState) -> None:
        """Go on to a state.

        Raises:
            RuntimeError: the run cannot go there from where it is.
        """
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"a run does not go from {self.state} to {state}")
        self.state = state
