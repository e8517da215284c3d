"""The state tables: those in the documentation are those of the code, and no other move is made."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import pytest

from spica_async.states import moved

DOCUMENT = Path(__file__).parents[3] / "docs" / "architecture.md"
TABLE = re.compile(r"<!-- states: (?P<module>\S+) -->\n```\n(?P<rows>.*?)```", re.DOTALL)


def documented_tables() -> dict[str, str]:
    return {match["module"]: match["rows"] for match in TABLE.finditer(DOCUMENT.read_text())}


def parsed(rows: str) -> dict[str, set[str]]:
    table = {}
    for row in rows.strip().splitlines():
        state, _, targets = row.partition("->")
        words = {word.strip() for word in targets.split("|")}
        table[state.strip()] = words - {"(final)"}
    return table


MACHINES = (
    "spica_async.search.sweep_state",
    "spica_async.search.schedule.state",
    "spica_async.processes.stopping",
    "workers.slot",
)


def test_all_machines_are_documented() -> None:
    assert set(documented_tables()) == set(MACHINES)


def transitions_of(module: str) -> Mapping[Enum, frozenset[Enum]]:
    transitions: Mapping[Enum, frozenset[Enum]] = importlib.import_module(module).TRANSITIONS
    return transitions


@pytest.mark.parametrize("module", MACHINES)
def test_the_table_is_that_of_the_code(module: str) -> None:
    transitions = transitions_of(module)

    assert parsed(documented_tables()[module]) == {
        state.value: {target.value for target in targets} for state, targets in transitions.items()
    }


@pytest.mark.parametrize("module", MACHINES)
def test_every_state_has_its_moves_and_other_moves_are_refused(module: str) -> None:
    transitions = transitions_of(module)
    first, *others = type(next(iter(transitions)))

    assert set(transitions) == {first, *others}
    assert set(others) <= set().union(*transitions.values())
    for before, allowed in transitions.items():
        for after in set(transitions) - allowed:
            with pytest.raises(RuntimeError, match=f"from {before.value} to {after.value}"):
                moved("it", transitions, before, after)
