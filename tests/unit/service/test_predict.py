"""What is predicted is one deployment."""

from __future__ import annotations

from typing import Any

import pytest
from support.planning import plan

from spica_async.errors import InputError
from spica_async.service.predict import only_deployment

ONE = {
    "parallel_configs": [{"tp": 2}],
    "agg_max_num_batched_tokens": [8192],
    "agg_max_num_seqs": [256],
}


def test_lists_with_one_entry_are_one() -> None:
    assert only_deployment(plan(ONE)).sample["tp"] == 2


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"agg_max_num_seqs": [256, 512]}, "agg: several entries of agg_max_num_seqs"),
        ({"parallel_configs": [{"tp": 2}, {"tp": 4}]}, "agg: 2 parallel configurations"),
    ],
)
def test_what_is_several_is_named(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match="more than one deployment") as refused:
        only_deployment(plan(ONE | changes))
    assert str(refused.value).endswith(f":\n  {problem}")
