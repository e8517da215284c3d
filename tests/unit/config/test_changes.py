"""Values that are set on a command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import small_sweep

from spica_async.config.changes import changed
from spica_async.config.load import load_config
from spica_async.errors import InputError

DOCUMENT = {"search_space": {"gpu_budget": 4}, "workload": None}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("search_space.gpu_budget=8", {"search_space": {"gpu_budget": 8}, "workload": None}),
        (" sweep.max_rounds = 2 ", DOCUMENT | {"sweep": {"max_rounds": 2}}),
        ("workload.isl=100", DOCUMENT | {"workload": {"isl": 100}}),
        (
            "search_space.parallel_configs=[{tp: 2}]",
            {"search_space": {"gpu_budget": 4, "parallel_configs": [{"tp": 2}]}, "workload": None},
        ),
        ("goal.sla={ttft_ms: 1e3}", DOCUMENT | {"goal": {"sla": {"ttft_ms": 1000.0}}}),
        ("workload.trace_path=a=b", DOCUMENT | {"workload": {"trace_path": "a=b"}}),
        ("sweep=", DOCUMENT | {"sweep": None}),
    ],
)
def test_a_value_takes_the_place_of_another(change: str, expected: dict[str, Any]) -> None:
    assert changed(DOCUMENT, [change]) == expected
    assert DOCUMENT == {"search_space": {"gpu_budget": 4}, "workload": None}


def test_the_last_of_several_counts() -> None:
    changes = ["goal.sla.ttft_ms=1", "goal.sla.itl_ms=2", "goal.sla.ttft_ms=3"]
    assert changed({}, changes) == {"goal": {"sla": {"ttft_ms": 3, "itl_ms": 2}}}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("search_space.gpu_budget", "search_space.gpu_budget: a change is block.key=value"),
        ("=8", "=8: a change is block.key=value"),
        ("search_space..x=8", "search_space..x=8: a change is block.key=value"),
        ("search_space.gpu_budget.x=8", "search_space.gpu_budget has no keys"),
        ("sweep.x=[1", "sweep.x: line 1: not valid YAML"),
        ("sweep.x=1\ny: 2", "sweep.x: the value is not on one line"),
        ("sweep.x=tp: 2", "sweep.x: line 1: not valid YAML"),
    ],
)
def test_what_is_no_change_is_refused(change: str, problem: str) -> None:
    with pytest.raises(InputError) as refused:
        changed(DOCUMENT, [change])
    assert str(refused.value).startswith("--set ")
    assert problem in str(refused.value)


def test_a_field_that_is_set_is_checked_as_one_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(small_sweep()))
    assert load_config(path, ["search_space.gpu_budget=16"]).search_space.gpu_budget == 16
    with pytest.raises(InputError, match=r"search_space\.gpu_budgte: unknown key; did you mean"):
        load_config(path, ["search_space.gpu_budgte=16"])
