"""The transition table of a slot."""

from __future__ import annotations

from workers.slot import TRANSITIONS, SlotState


def test_a_busy_slot_was_idle_and_a_child_is_ended_before_the_next_starts() -> None:
    def ways_to(state: SlotState) -> set[SlotState]:
        return {source for source, targets in TRANSITIONS.items() if state in targets}

    assert ways_to(SlotState.BUSY) == {SlotState.IDLE}
    assert ways_to(SlotState.STARTING) == {SlotState.EMPTY}
