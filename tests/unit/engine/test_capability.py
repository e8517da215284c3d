from __future__ import annotations

from typing import get_args

import pytest

from schemas.search_space import Backend, SearchSpace
from spica_async.engine.capability import (
    UNREPRESENTABLE_SCALARS,
    ignored_knobs,
    unread_planner_knobs,
)
from spica_async.engine.refusals import is_unsupported


def test_every_entry_is_a_field_of_the_search_space_and_has_a_reason() -> None:
    entries = dict(UNREPRESENTABLE_SCALARS)
    for backend in get_args(Backend):
        entries |= ignored_knobs(backend)
    entries |= unread_planner_knobs("throughput")
    assert set(entries) <= set(SearchSpace.model_fields)
    assert all(entries.values())


def test_what_the_planner_hears_depends_on_its_target() -> None:
    assert not unread_planner_knobs("sla")
    for target in ("throughput", "latency"):
        assert set(unread_planner_knobs(target)) == {
            "planner_fpm_sampling",
            "planner_load_sensitivity",
        }


@pytest.mark.parametrize(
    ("message", "unsupported"),
    [
        ("native_host_offload is supported only for backend=vllm", True),
        ("native_host_offload does not support aic_nextn", True),
        ("invalid forward pass perf model config: unsupported moe_backend", True),
        ("moe_backend override requires backend=sglang", True),
        ("block_size must be at least two", False),
        ("failed to open trace file", False),
    ],
)
def test_beyond_the_engine_is_not_the_same_as_wrong(
    message: str,
    unsupported: bool,  # noqa: FBT001  # a parameter of the test
) -> None:
    assert is_unsupported(ValueError(message)) == unsupported
