"""Which branches, shapes and backends a sweep searches, and why others are left out."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.planning import ROOMY, FakeEngine, configs, plan, refusal, reject_tp_over

from schemas.messages import Sample
from schemas.search_space import Role
from spica_async.engine.facts import ModelFacts
from spica_async.engine.refusals import ShapeRejectedError
from spica_async.plan.types import Dropped, dropped_lines
from spica_async.space.capacity import CapacityKey
from spica_async.space.pool import ParallelConfig, RoleDeployment
from spica_async.space.shapes import ParallelShape


def test_a_branch_per_mode_in_the_order_of_the_configuration() -> None:
    found = plan({"deployment_mode": ["disagg", "agg"], "gpu_budget": 2})
    assert [branch.mode for branch in found.branches] == ["disagg", "agg"]
    assert configs(found, 0) == ["prefill 1 x (tp 1), decode 1 x (tp 1)"]
    assert configs(found, 1) == ["agg 1 x (tp 1)", "agg 2 x (tp 1)", "agg 1 x (tp 2)"]
    assert found.dropped == ()
    assert found.warnings == ()
    assert found.backend_versions == {"vllm": "vllm 1.0"}
    assert found.branches[0].gpu_budget == 2


def test_every_batch_limit_of_every_shape_is_asked_for() -> None:
    engine = FakeEngine()
    found = plan({"gpu_budget": 2, "agg_max_num_batched_tokens": [8192, 16384]}, engine)
    expected = [
        ("vllm", "agg", ParallelShape(size), batched)
        for size in (1, 2)
        for batched in (8192, 16384)
    ]
    assert engine.asked_for_capacity == expected
    assert found.capacity == {
        CapacityKey("vllm", "agg", shape, batched): ROOMY for _, _, shape, batched in expected
    }


@pytest.mark.parametrize(
    ("context_length", "kept"), [(None, ["agg 1 x (tp 2)"]), (3999, 3), (4000, 1)]
)
def test_the_longest_sequence_is_the_models_unless_it_is_given(
    context_length: int | None, kept: int | list[str]
) -> None:
    engine = FakeEngine(tokens=lambda sample, _: 2000 * 2 * cast("int", sample["tp"]))
    space = {"gpu_budget": 2} | ({"context_length": context_length} if context_length else {})
    found = plan(space, engine)
    assert found.longest_sequence == (context_length or 4096)
    assert len(configs(found)) == (kept if isinstance(kept, int) else len(kept))
    if context_length is None:
        assert found.dropped == (
            Dropped("agg vllm agg tp 1", "4000 KV tokens a rank hold no sequence of 4096 tokens"),
        )


def test_a_shape_stays_while_one_batch_limit_leaves_room() -> None:
    engine = FakeEngine(tokens=lambda s, _: ROOMY if s["agg_max_num_batched_tokens"] == 8192 else 1)
    space = {"gpu_budget": 1, "agg_max_num_batched_tokens": [16384, 8192]}
    found = plan(space, engine)
    assert configs(found) == ["agg 1 x (tp 1)"]
    assert sorted(map(str, found.capacity.values())) == ["1", str(ROOMY)]


def test_a_shape_that_the_engine_rejects_is_dropped_with_its_reason() -> None:
    found = plan({"gpu_budget": 2}, FakeEngine(tokens=reject_tp_over(1)))
    assert configs(found) == ["agg 1 x (tp 1)", "agg 2 x (tp 1)"]
    assert found.dropped == (Dropped("agg vllm agg tp 2", "heads are not divisible by 2"),)
    key = CapacityKey("vllm", "agg", ParallelShape(2), 8192)
    assert found.capacity[key] == "heads are not divisible by 2"


def test_shapes_that_a_backend_refuses_are_not_asked_for() -> None:
    engine = FakeEngine(is_moe=True)
    found = plan({"gpu_budget": 2, "backend": ["sglang"], "moe_backend": "deepep_moe"}, engine)
    assert {shape for _, _, shape, _ in engine.asked_for_capacity} == {
        ParallelShape(1),
        ParallelShape(2, moe_ep=2),
        ParallelShape(1, attention_dp=2, moe_ep=2),
    }
    assert {dropped.reason for dropped in found.dropped} == {
        "moe_backend deepep_moe on sglang takes moe_tp 1 only"
    }
    assert found.needs_wide_ep is True


def test_a_backend_without_data_or_replay_leaves_the_knob_with_its_reason() -> None:
    engine = FakeEngine(
        unmeasured=frozenset({"sglang"}), unsupported={("trtllm", "disagg"): "no such thing"}
    )
    found = plan(
        {
            "deployment_mode": ["disagg", "agg"],
            "backend": ["trtllm", "sglang", "vllm"],
            "gpu_budget": 2,
        },
        engine,
    )
    assert [branch.backend.entries for branch in found.branches] == [("vllm",), ("trtllm", "vllm")]
    assert found.dropped == (
        Dropped("backend sglang", "no performance data for sglang on some_gpu"),
        Dropped("disagg trtllm", "cannot be replayed: no such thing"),
    )
    assert found.backend_versions == {"trtllm": "trtllm 1.0", "vllm": "vllm 1.0"}


def test_a_backend_that_cannot_be_set_up_so_leaves_the_knob_with_its_reason() -> None:
    def tokens(sample: Sample, _: Role) -> int:
        if sample["backend"] == "sglang":
            raise ShapeRejectedError("unsupported", "offloading is not implemented")
        return ROOMY

    engine = FakeEngine(tokens=tokens)
    found = plan({"backend": ["sglang", "vllm"], "gpu_budget": 1}, engine)
    assert found.branches[0].backend.entries == ("vllm",)
    assert Dropped("agg sglang agg tp 1", "offloading is not implemented") in found.dropped
    assert {sample["backend"] for sample in engine.probed} == {"vllm"}


def test_a_mode_that_nothing_can_run_is_skipped_and_the_other_stays() -> None:
    engine = FakeEngine(unsupported={("vllm", "disagg"): "no such thing"})
    found = plan({"deployment_mode": ["disagg", "agg"], "gpu_budget": 2}, engine)
    assert [branch.mode for branch in found.branches] == ["agg"]
    assert found.dropped == (
        Dropped("disagg vllm", "cannot be replayed: no such thing"),
        Dropped("disagg", "no backend can run it"),
    )


def test_a_few_shapes_are_tried_and_one_that_runs_speaks_for_the_backend() -> None:
    engine = FakeEngine()
    plan({"gpu_budget": 16}, engine)
    assert [sample["tp"] for sample in engine.probed] == [1]
    assert engine.probed[0]["replicas"] == 1
    failing = FakeEngine(unsupported={("vllm", "agg"): "no such thing"})
    assert "no such thing" in refusal({"gpu_budget": 16}, failing)
    assert [sample["tp"] for sample in failing.probed] == [1, 2, 4]


def test_a_budget_that_nothing_fits_says_why_each_shape_went() -> None:
    engine = FakeEngine(tokens=lambda sample, _: cast("int", sample["tp"]))
    assert refusal({"gpu_budget": 2}, engine) == (
        "search_space: no deployment of a/model on some_gpu is viable within gpu_budget 2:\n"
        "  agg vllm agg tp 1: 1 KV tokens a rank hold no sequence of 4096 tokens\n"
        "  agg vllm agg tp 2: 2 KV tokens a rank hold no sequence of 4096 tokens\n"
        "  agg: no backend can run it"
    )


def test_without_a_backend_that_was_measured_the_backend_is_at_fault() -> None:
    engine = FakeEngine(unmeasured=frozenset({"vllm", "trtllm"}))
    assert refusal({"backend": ["vllm", "trtllm"]}, engine) == (
        "search_space.backend: none can be replayed on some_gpu:\n"
        "  backend vllm: no performance data for vllm on some_gpu\n"
        "  backend trtllm: no performance data for trtllm on some_gpu\n"
        "  agg: no backend can run it"
    )


def test_a_budget_of_more_combinations_than_can_be_held_is_refused() -> None:
    # Of the replicas that fit, each role has 3,000 of tp 1, 1,500 of tp 2 and so on to tp 16.
    assert refusal({"deployment_mode": ["disagg"], "gpu_budget": 3000}) == (
        "search_space.gpu_budget: 3000 GPUs make too many disagg configurations "
        "(33,779,344 combinations, more than 30,000,000); list some in parallel_configs"
    )


def test_limits_that_no_replicas_meet_are_named() -> None:
    engine = FakeEngine(tokens=lambda s, _: ROOMY if s["tp"] == 4 else 0)
    found = refusal({"gpu_budget": 7, "min_gpu_budget": 5}, engine)
    assert found.endswith(
        "\n  agg vllm: no replicas of its shapes use 5 to 7 GPUs\n  agg: no backend can run it"
    )


def test_a_backend_without_replicas_within_the_limits_is_dropped_with_its_reason() -> None:
    engine = FakeEngine(tokens=lambda s, _: ROOMY if s["backend"] == "vllm" or s["tp"] == 4 else 0)
    space = {"backend": ["vllm", "sglang"], "gpu_budget": 7, "min_gpu_budget": 5}
    found = plan(space, engine)
    assert found.branches[0].backend.entries == ("vllm",)
    assert Dropped("agg sglang", "no replicas of its shapes use 5 to 7 GPUs") in found.dropped


def test_pinned_configurations_are_the_whole_pool() -> None:
    found = plan(
        {
            "deployment_mode": ["disagg"],
            "parallel_configs": [
                {"prefill": {"tp": 2}, "decode": {"tp": 1, "replicas": 2}},
                {"prefill": {"tp": 1}, "decode": {"tp": 1}},
            ],
        }
    )
    assert configs(found) == [
        "prefill 1 x (tp 1), decode 1 x (tp 1)",
        "prefill 1 x (tp 2), decode 2 x (tp 1)",
    ]


def test_a_pin_is_kept_for_the_backends_that_can_run_it() -> None:
    engine = FakeEngine(is_moe=True)
    mixed = {"tp": 2, "attention_dp": 2, "moe_ep": 4}
    found = plan(
        {"backend": ["trtllm", "vllm"], "parallel_configs": [mixed, {"tp": 2, "moe_ep": 2}]},
        engine,
    )
    pool = found.branches[0].pool
    legal = {
        backend: [str(pool[int(i)]) for i in pool.legal_indices(backend)]
        for backend in pool.backends
    }
    assert legal == {
        "trtllm": ["agg 1 x (tp 2 moe_ep 2)"],
        "vllm": ["agg 1 x (tp 2 moe_ep 2)", "agg 1 x (tp 2 attention_dp 2 moe_ep 4)"],
    }
    probed = [(s["backend"], s["tp"], s["attention_dp"]) for s in engine.probed]
    assert probed == [("trtllm", 2, 1), ("vllm", 2, 2)]


@pytest.mark.parametrize(
    ("entry", "engine", "expected"),
    [
        (
            {"tp": 2, "replicas": 3},
            FakeEngine(),
            "search_space.parallel_configs[0]: uses 6 GPUs, allowed are 2 to 4",
        ),
        (
            {"tp": 1},
            FakeEngine(),
            "search_space.parallel_configs[0]: uses 1 GPUs, allowed are 2 to 4",
        ),
        (
            {"tp": 2, "moe_ep": 2},
            FakeEngine(),
            (
                "search_space.parallel_configs[0]: no backend can run agg 1 x (tp 2 moe_ep 2):\n"
                "  agg vllm agg tp 2 moe_ep 2: a dense model takes tp alone: "
                "attention_dp, moe_tp and moe_ep stay 1"
            ),
        ),
        (
            {"tp": 2},
            FakeEngine(is_moe=True),
            (
                "search_space.parallel_configs[0]: no backend can run agg 1 x (tp 2):\n"
                "  agg vllm agg tp 2: tp * attention_dp is 2 but moe_tp * moe_ep is 1"
            ),
        ),
        (
            {"tp": 4},
            FakeEngine(tokens=reject_tp_over(2)),
            (
                "search_space.parallel_configs[0]: no backend can run agg 1 x (tp 4):\n"
                "  agg vllm agg tp 4: heads are not divisible by 4"
            ),
        ),
        (
            {"tp": 4},
            FakeEngine(unsupported={("vllm", "agg"): "no such thing"}),
            (
                "search_space.parallel_configs[0]: no backend can run agg 1 x (tp 4):\n"
                "  agg vllm: cannot be replayed: no such thing"
            ),
        ),
    ],
    ids=["over", "under", "dense", "width", "rejected", "unsupported"],
)
def test_a_pin_that_nothing_can_run_is_an_error(
    entry: dict[str, int], engine: FakeEngine, expected: str
) -> None:
    space = {"min_gpu_budget": 2, "parallel_configs": [entry]}
    assert refusal(space, engine) == expected


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_pin_at_a_limit_is_legal(replicas: int) -> None:
    space = {"min_gpu_budget": 2, "parallel_configs": [{"tp": 2, "replicas": replicas}]}
    pool = plan(space).branches[0].pool
    assert pool[0] == ParallelConfig((("agg", RoleDeployment(ParallelShape(2), replicas)),))


pins = st.fixed_dictionaries({"tp": st.sampled_from([1, 2, 4, 8]), "replicas": st.integers(1, 4)})


@settings(deadline=None, max_examples=50)
@given(st.lists(pins, min_size=1, max_size=4), st.integers(1, 16), st.integers(1, 16))
def test_no_pin_leaves_the_limits(menu: list[dict[str, int]], one: int, other: int) -> None:
    low, high = sorted((one, other))
    space = {"parallel_configs": menu, "min_gpu_budget": low, "gpu_budget": high}
    used = [pin["tp"] * pin["replicas"] for pin in menu]
    outside = [index for index, gpus in enumerate(used) if not low <= gpus <= high]
    if outside:
        index = outside[0]
        assert refusal(space) == (
            f"search_space.parallel_configs[{index}]: "
            f"uses {used[index]} GPUs, allowed are {low} to {high}"
        )
    else:
        pool = plan(space).branches[0].pool
        assert len(pool) == len({(pin["tp"], pin["replicas"]) for pin in menu})
        assert set(pool.used_gpus.tolist()) == set(used)


def test_a_model_without_weights_is_refused() -> None:
    class Weightless(FakeEngine):
        def model_facts(self, model: str) -> ModelFacts:
            return replace(super().model_facts(model), weight_bytes=0)

    assert refusal(engine=Weightless()).startswith("search_space.model_name: model 'a/model' ")


def test_one_reason_is_said_once_with_a_count() -> None:
    def nothing_measured(*_: object) -> int:
        raise ShapeRejectedError("no_performance_data", "never measured")

    found = refusal({"gpu_budget": 16}, FakeEngine(is_moe=True, tokens=nothing_measured))

    (line,) = [line for line in found.splitlines() if "never measured" in line]
    assert line.startswith("  agg vllm agg tp 1, agg vllm agg attention_dp 2 moe_ep 2, ")
    assert line.endswith(" and 14 more: never measured")


def test_reasons_with_other_figures_are_reasons_of_their_own() -> None:
    dropped = [Dropped("a", "1 token"), Dropped("b", "2 tokens"), Dropped("c", "1 token")]
    assert dropped_lines(dropped) == ["a, c: 1 token", "b: 2 tokens"]


@pytest.mark.timeout(10)
@pytest.mark.parametrize("mode", ["agg", "disagg"])
@pytest.mark.parametrize("budget", [2_000_000, 10**9, 2**63 - 1])
def test_a_budget_without_bound_is_refused_before_anything_is_made(mode: str, budget: int) -> None:
    found = refusal({"deployment_mode": [mode], "gpu_budget": budget})
    assert found.startswith(f"search_space.gpu_budget: {budget} GPUs make too many {mode} ")
