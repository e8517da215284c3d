"""Moves of a state machine, checked against the table of those that are allowed."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

StateT = TypeVar("StateT", bound=Enum)


def moved(
    what: str, transitions: Mapping[StateT, frozenset[StateT]], before: StateT, after: StateT
) -> StateT:
    """The state after a move.

    Args:
        what: the thing that has the state, for the message.
        transitions: the states that may follow each; none follow a final one.
        before: the state that it is in.
        after: the state that it is to be in.

    Raises:
        RuntimeError: `transitions` has no such move.
    """
    if after not in transitions[before]:
        raise RuntimeError(f"{what} does not go from {before.value} to {after.value}")
    return after
