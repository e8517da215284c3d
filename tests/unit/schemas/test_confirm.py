"""The `confirm:` block, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.commands import small_sweep

from spica_async.config.load import load_config
from spica_async.documents import to_yaml
from spica_async.errors import InputError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sweep.yaml"


@pytest.mark.parametrize(
    ("word", "enabled"), [("on", "on"), ("off", "off"), ("auto", "auto"), ("'on'", "on")]
)
def test_on_and_off_are_words(path: Path, word: str, enabled: str) -> None:
    path.write_text(to_yaml(small_sweep()) + f"confirm: {{enabled: {word}}}\n")
    assert load_config(path).confirm.enabled == enabled


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ({"enabled": "sometimes"}, "confirm.enabled: input should be 'auto', 'on' or 'off'"),
        ({"top": 0}, "confirm.top: input should be greater than or equal to 1"),
        ({"max_replays": -1}, "confirm.max_replays: input should be greater than or equal to 0"),
        ({"precision": 0}, "confirm.precision: input should be greater than 0"),
        ({"precision": 1.0}, "confirm.precision: input should be less than 1"),
        ({"search_share": 1.5}, "confirm.search_share: input should be less than or equal to 1"),
        ({"loads": [0.0]}, "confirm.loads[0]: input should be greater than 0"),
        ({"loads": [1.0, 1.0]}, "confirm.loads: list distinct factors"),
        ({"loads": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}, "confirm.loads: list should have at most 5"),
        ({"enabled": "off", "top": 3}, "confirm.top: has no effect with enabled: off"),
        ({"topp": 3}, "confirm.topp: unknown key; did you mean top?"),
    ],
    ids=str,
)
def test_each_bad_value_has_one_error(path: Path, block: dict[str, Any], problem: str) -> None:
    path.write_text(to_yaml(small_sweep() | {"confirm": block}))
    with pytest.raises(InputError) as refused:
        load_config(path)
    _, *problems = str(refused.value).splitlines()
    assert len(problems) == 1
    assert problems[0].strip().startswith(problem)
