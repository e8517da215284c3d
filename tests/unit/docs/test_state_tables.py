"""The state tables in the documentation are those of the code."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import pytest

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
    "spica_async.search.schedule",
    "spica_async.processes.stopping",
    "workers.slot",
)


def test_all_machines_are_documented() -> None:
    assert set(documented_tables()) == set(MACHINES)


@pytest.mark.parametrize("module", MACHINES)
def test_the_table_is_that_of_the_code(module: str) -> None:
    transitions: Mapping[Enum, frozenset[Enum]] = importlib.import_module(module).TRANSITIONS

    assert parsed(documented_tables()[module]) == {
        state.value: {target.value for target in targets} for state, targets in transitions.items()
    }
