"""What the candidates of a sweep are held against, as it is planned."""

from __future__ import annotations

from typing import Any

import pytest
from support.planning import FakeEngine, plan, refusal, reject_tp_over

from schemas.search_space import PinnedShape
from spica_async.plan.types import SweepPlan
from spica_async.search.baseline import Baseline
from spica_async.search.branches import sample_context

PAIR = {"prefill": {"tp": 1}, "decode": {"tp": 2}}


def deployed(found: SweepPlan) -> str:
    assert found.baseline is not None
    return f"{found.baseline.backend} {found.baseline.config}"


def sample(found: SweepPlan) -> dict[str, Any]:
    assert found.baseline is not None
    return Baseline("sweep", found.config, sample_context(found), found.baseline).sample


def test_without_one_nothing_is_planned() -> None:
    assert plan().baseline is None
    assert plan().digest != plan(baseline={"tp": 1}).digest != plan(baseline={"tp": 2}).digest


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("default", "vllm agg 2 x (tp 2)"),
        ({"tp": 1, "replicas": 3}, "vllm agg 3 x (tp 1)"),
        (PAIR, "vllm prefill 1 x (tp 1), decode 1 x (tp 2)"),
    ],
)
def test_it_may_be_of_any_mode_and_shape(baseline: object, expected: str) -> None:
    found = plan(baseline=baseline)
    assert deployed(found) == expected
    # The search is what it was.
    assert [branch.mode for branch in found.branches] == ["agg"]
    assert found.branches == plan().branches


def test_what_is_searched_is_as_dynamo_has_it_and_what_is_pinned_as_it_is_pinned() -> None:
    searched = sample(plan({"router_mode": ["kv_router", "round_robin"]}, baseline={"tp": 1}))
    assert searched["router_mode"] == "round_robin"
    assert searched["agg_max_num_seqs"] == 256
    assert searched["agg_max_num_batched_tokens"] == 8192
    pinned = {
        "router_mode": ["kv_router"],
        "overlap_score_credit": [0.5],
        "agg_max_num_seqs": [1024],
        "agg_max_num_batched_tokens": [16384, 32768],
        "planner_scaling_policy": ["disabled", "load_180_10"],
    }
    found = sample(plan(pinned, baseline={"tp": 1}))
    assert found["router_mode"] == "kv_router"
    assert found["overlap_score_credit"] == 0.5
    # Of several the replay takes its own default.
    assert "router_temperature" not in found
    assert found["agg_max_num_seqs"] == 1024
    assert found["agg_max_num_batched_tokens"] == 8192
    assert found["planner_scaling_policy"] == "disabled"


def test_the_first_backend_that_was_measured_runs_it() -> None:
    engine = FakeEngine(unmeasured=frozenset({"sglang"}))
    found = plan({"backend": ["sglang", "trtllm"]}, engine, baseline="default")
    assert deployed(found).startswith("trtllm")


@pytest.mark.parametrize(
    ("engine", "baseline", "problem"),
    [
        (FakeEngine(), {"tp": 4, "replicas": 2}, "baseline: uses 8 GPUs, gpu_budget has 4"),
        (FakeEngine(tokens=reject_tp_over(1)), {"tp": 2}, "heads are not divisible by 2"),
        (FakeEngine(), {"tp": 1, "moe_ep": 2}, "a dense model takes tp alone"),
        (
            FakeEngine(unsupported={("vllm", "disagg"): "no handing over"}),
            PAIR,
            "baseline: vllm cannot run prefill 1 x (tp 1), decode 1 x (tp 2): no handing over",
        ),
        (FakeEngine(default="no such model"), "default", "give its shape: no such model"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    engine: FakeEngine, baseline: object, problem: str
) -> None:
    found = refusal(None, engine, baseline=baseline)
    assert found.startswith("baseline: ")
    assert problem in found


def test_the_default_of_a_moe_model_splits_its_experts() -> None:
    engine = FakeEngine(is_moe=True, default=PinnedShape(tp=4, moe_tp=4))
    assert deployed(plan(None, engine, baseline="default")) == "vllm agg 1 x (tp 4 moe_tp 4)"
