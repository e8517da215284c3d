"""The transition table of a slot."""

from __future__ import annotations

from itertools import product

import pytest

from workers.settings import ChildSettings, default_slots, memory_share
from workers.slot import TRANSITIONS, Slot, SlotState


def test_every_state_has_a_way_in_and_a_way_on() -> None:
    assert set(TRANSITIONS) == set(SlotState)
    assert set().union(*TRANSITIONS.values()) == set(SlotState)
    assert all(TRANSITIONS.values())


def test_a_busy_slot_was_idle_and_a_child_is_ended_before_the_next_starts() -> None:
    def ways_to(state: SlotState) -> set[SlotState]:
        return {source for source, targets in TRANSITIONS.items() if state in targets}

    assert ways_to(SlotState.BUSY) == {SlotState.IDLE}
    assert ways_to(SlotState.STARTING) == {SlotState.EMPTY}


@pytest.mark.parametrize(
    ("source", "target"),
    [(a, b) for a, b in product(SlotState, SlotState) if b not in TRANSITIONS[a]],
)
def test_other_transitions_are_refused(source: SlotState, target: SlotState) -> None:
    slot = Slot(0, ChildSettings(), memory_limit_bytes=1)
    slot._state = source
    with pytest.raises(RuntimeError, match=f"{source.value} cannot become {target.value}"):
        slot._enter(target)
    assert slot.state is source


def test_slots_share_the_memory_that_is_there() -> None:
    assert default_slots() >= 1
    assert 0 < memory_share(4) < memory_share(1)
