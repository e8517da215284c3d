"""The `baseline` of a configuration: a shape, or what is deployed by default."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.commands import small_sweep

from schemas.config import SmartSearchConfig
from schemas.search_space import PinnedPair, PinnedShape
from spica_async.config.load import load_config
from spica_async.errors import InputError
from spica_async.report.folder import config_document

PAIR = {"prefill": {"tp": 1}, "decode": {"tp": 2, "replicas": 3}}


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (None, None),
        ("default", "default"),
        ({"tp": 2, "replicas": 4}, PinnedShape(tp=2, replicas=4)),
        (PAIR, PinnedPair(prefill=PinnedShape(tp=1), decode=PinnedShape(tp=2, replicas=3))),
    ],
)
def test_what_is_written_is_read_and_can_be_read_again(
    make_config: Callable[..., SmartSearchConfig], written: object, read: object
) -> None:
    config = make_config(baseline=written)
    assert config.baseline == read
    assert SmartSearchConfig.model_validate(config_document(config)) == config


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"baseline": "vllm"}, "baseline: default, or a mapping, {tp: ...} or"),
        ({"baseline": 3}, "baseline: default, or a mapping, {tp: ...} or"),
        ({"baseline": {"tp": 3}}, "baseline.tp: tp * attention_dp is 3 GPUs a worker"),
        ({"baseline": {"tp": 1, "replica": 2}}, "baseline.replica: unknown key; did you mean"),
        ({"baseline": {"prefill": {"tp": 1}}}, "baseline.decode: required"),
        (
            {"baseline": PAIR, "search_space": {"prefill_block_size": 32}},
            "search_space.decode_block_size: must be 32 as prefill_block_size",
        ),
        (
            {
                "baseline": "default",
                "goal": {"target": "pareto"},
                "workload": {"isl": 8, "osl": 8, "num_request_ratio": 2, "kv_load_ratio": [0.1, 1]},
            },
            "baseline: needs one load: give workload.kv_load_ratio one number",
        ),
    ],
)
def test_what_is_no_baseline_is_one_error(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    document = small_sweep()
    space = document["search_space"] | changes.pop("search_space", {})
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump(document | changes | {"search_space": space}))
    with pytest.raises(InputError) as refused:
        load_config(path)
    _, *problems = str(refused.value).splitlines()
    assert [line.strip().startswith(problem) for line in problems] == [True], problems
