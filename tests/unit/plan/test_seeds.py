"""What a plan says should be tried first, with an engine whose steps are known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from support.planning import ROOMY, FakeEngine, plan, scaling

from schemas.messages import Sample, TraceLoad
from schemas.search_space import Backend, Role
from spica_async.engine.estimates import Steps, StepTimes
from spica_async.engine.refusals import ShapeRejectedError
from spica_async.optimizer.assignments import centre
from spica_async.plan.describe import describe_plan
from spica_async.plan.types import SweepPlan
from spica_async.space.branch import Selection

BUDGET_OF_ONE = {"max_rounds": 1, "parallel_evals": 1}
PER_GPU = {"target": "throughput_per_gpu"}
LENGTHS = {"isl": 1000, "osl": 100, "num_request_ratio": 2.0}


def searched(
    space: dict[str, Any] | None = None, engine: FakeEngine | None = None, **blocks: Any
) -> SweepPlan:
    """A plan whose budget is far below what there is."""
    return plan(space, engine, **{"sweep": BUDGET_OF_ONE, **blocks})


def deployments(seeds: tuple[Selection, ...]) -> list[str]:
    return [f"{seed.backend} {seed.config}" for seed in seeds]


def test_the_best_of_each_size_is_tried_first() -> None:
    found = searched({"gpu_budget": 8}, goal=PER_GPU, workload={**LENGTHS, "concurrency": 64})
    # More GPUs make a worker faster, but not by as much.
    assert deployments(found.seeds["agg"]) == [
        "vllm agg 1 x (tp 1)",
        "vllm agg 1 x (tp 2)",
        "vllm agg 1 x (tp 4)",
        "vllm agg 1 x (tp 8)",
    ]


def test_another_goal_has_other_seeds() -> None:
    found = searched({"gpu_budget": 8}, workload={**LENGTHS, "concurrency": 64})
    assert found.seeds["agg"][0].config.used_gpus == 8
    fast = searched({"gpu_budget": 8}, goal={"target": "e2e_latency"})
    assert deployments(fast.seeds["agg"])[0] == "vllm agg 1 x (tp 8)"


def test_seeds_have_the_knobs_and_the_load_of_the_middle_but_not_its_deployment() -> None:
    space = {
        "gpu_budget": 8,
        "agg_max_num_batched_tokens": [8192],
        "agg_max_num_seqs": [256, 512, 1024],
        "router_mode": ["round_robin"],
    }
    found = searched(space, workload={**LENGTHS, "kv_load_ratio": 0.5})
    (branch,) = found.branches
    middle, _ = branch.select(centre(branch.parameters))
    seeds = found.seeds["agg"]
    assert seeds
    assert middle.knobs["agg_max_num_seqs"] == 512
    for seed in seeds:
        assert seed.knobs == middle.knobs
        assert seed.kv_load_ratio == 0.5
        assert seed.config != middle.config
        # What a study would make of it is the seed again.
        assert branch.select(branch.assignment_of(seed))[0] == seed


def test_the_middle_is_not_among_the_seeds_where_it_is_estimated_best() -> None:
    space = {"gpu_budget": 2, "parallel_configs": [{"tp": 1}, {"tp": 1, "replicas": 2}, {"tp": 2}]}
    found = searched(space)
    (branch,) = found.branches
    middle, _ = branch.select(centre(branch.parameters))
    assert str(middle.config) == "agg 2 x (tp 1)"
    assert deployments(found.seeds["agg"]) == ["vllm agg 1 x (tp 2)"]


def test_every_backend_is_considered() -> None:
    def faster(sample: Sample, role: Role, steps: Steps) -> StepTimes:
        plain = scaling(sample, role, steps)
        factor = {"vllm": 1.0, "sglang": 0.5, "trtllm": 2.0}[cast("Backend", sample["backend"])]
        return StepTimes(plain.prefill_ms, tuple(factor * ms for ms in plain.decode_ms))

    engine = FakeEngine(steps=faster)
    backends = {"backend": ["vllm", "sglang", "trtllm"], "gpu_budget": 2}
    found = searched(backends, engine, goal=PER_GPU)
    assert deployments(found.seeds["agg"])[0] == "sglang agg 1 x (tp 1)"
    assert {seed.backend for seed in found.seeds["agg"]} >= {"sglang", "vllm"}


def test_each_branch_has_seeds_of_its_own_mode() -> None:
    found = searched({"deployment_mode": ["disagg", "agg"], "gpu_budget": 8})
    assert list(found.seeds) == ["disagg", "agg"]
    for mode, seeds in found.seeds.items():
        assert 1 < len(seeds) <= 4
        assert {seed.mode for seed in seeds} == {mode}
    sizes = {
        tuple(deployment.shape.gpus for _, deployment in seed.config.roles)
        for seed in found.seeds["disagg"]
    }
    assert len(sizes) == len(found.seeds["disagg"])


def test_prefill_and_decode_are_balanced() -> None:
    # Long prompts and short answers want prefill workers, and the other way round.
    def prefill_share(isl: int, osl: int) -> float:
        found = searched(
            {"deployment_mode": ["disagg"], "gpu_budget": 16},
            workload={**LENGTHS, "isl": isl, "osl": osl, "concurrency": 512},
        )
        best = found.seeds["disagg"][0].config
        return best["prefill"].used_gpus / best.used_gpus

    assert prefill_share(4000, 10) > 0.6
    assert prefill_share(100, 1000) < 0.4


def test_a_range_of_kv_loads_is_covered() -> None:
    found = searched(
        {"gpu_budget": 8},
        goal={"target": "pareto"},
        workload={**LENGTHS, "kv_load_ratio": [0.2, 0.6]},
    )
    ratios = [seed.kv_load_ratio for seed in found.seeds["agg"]]
    assert len(ratios) == 4
    assert all(ratio is not None and 0.2 < ratio < 0.6 for ratio in ratios)
    assert len(set(ratios)) > 1


def test_a_shape_without_an_estimate_is_no_seed_and_no_problem() -> None:
    def some(sample: Sample, role: Role, steps: Steps) -> StepTimes | str:
        return "never measured" if sample["tp"] == 1 else scaling(sample, role, steps)

    found = searched({"gpu_budget": 4}, FakeEngine(steps=some), goal=PER_GPU)
    assert deployments(found.seeds["agg"])[0] == "vllm agg 1 x (tp 2)"
    assert all(seed.config["agg"].shape.tp > 1 for seed in found.seeds["agg"])
    assert found.warnings == ()


def test_without_any_estimate_there_is_a_warning_and_no_seed() -> None:
    engine = FakeEngine(steps=lambda *_: "the tables are gone")
    found = searched({"gpu_budget": 4}, engine)
    assert found.seeds == {}
    assert found.warnings == ("no warm start, for nothing could be estimated: the tables are gone",)


def test_one_worker_that_is_estimated_is_no_reason_for_a_warning() -> None:
    def one(sample: Sample, role: Role, steps: Steps) -> StepTimes | str:
        return scaling(sample, role, steps) if sample["tp"] == 1 else "never measured"

    # It alone is estimated, and it is what is tried first anyway.
    space = {"gpu_budget": 2, "parallel_configs": [{"tp": 1}, {"tp": 2}]}
    found = searched({**space, "agg_max_num_seqs": [512]}, FakeEngine(steps=one))
    (branch,) = found.branches
    middle, _ = branch.select(centre(branch.parameters))
    assert str(middle.config) == "agg 1 x (tp 1)"
    assert found.seeds == {}
    assert found.warnings == ()


def test_a_shape_without_kv_room_under_the_middles_limits_is_no_seed() -> None:
    def tokens(sample: Sample, role: Role) -> int:
        if sample["tp"] == 1 and cast("int", sample["agg_max_num_batched_tokens"]) > 8192:
            raise ShapeRejectedError("no_kv_room", "no KV budget")
        return ROOMY

    space = {"gpu_budget": 4, "agg_max_num_batched_tokens": [8192, 16384, 32768]}
    found = searched(space, FakeEngine(tokens=tokens), goal=PER_GPU)
    assert deployments(found.seeds["agg"])[0] == "vllm agg 1 x (tp 2)"


def asked(engine: FakeEngine) -> list[tuple[Sample, Role, Steps]]:
    """Lets the engine note what steps it is asked for."""
    questions: list[tuple[Sample, Role, Steps]] = []

    def note(sample: Sample, role: Role, steps: Steps) -> StepTimes:
        questions.append((sample, role, steps))
        return scaling(sample, role, steps)

    engine.steps = note
    return questions


def test_nothing_is_estimated_in_vain() -> None:
    engine = FakeEngine()
    questions = asked(engine)
    off = searched({"gpu_budget": 4}, engine, sweep={**BUDGET_OF_ONE, "warm_start": False})
    assert off.seeds == {}
    whole = plan({"gpu_budget": 4}, engine)
    assert whole.seeds == {}
    assert questions == []


def test_a_worker_is_timed_once_for_all_roles_and_branches() -> None:
    engine = FakeEngine()
    questions = asked(engine)
    searched({"gpu_budget": 4, "deployment_mode": ["disagg", "agg"]}, engine)
    timed = [sample[f"{role}_tp" if role != "agg" else "tp"] for sample, role, _ in questions]
    # Beside a worker of the other role there is no room for four GPUs.
    assert sorted(cast("list[int]", timed)) == [1, 2, 4]


def test_steps_are_those_of_the_workload() -> None:
    engine = FakeEngine()
    questions = asked(engine)
    shared = {"shared_prefix_ratio": 0.75, "num_prefix_groups": 2, "concurrency": 4}
    searched({"gpu_budget": 2}, engine, workload={**LENGTHS, **shared})
    steps = questions[0][2]
    assert (steps.isl, steps.cached, steps.context) == (1000, 750, 1050)
    # 131 uncached parts of prompts fit into the largest step.
    assert steps.prefill_batches == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert steps.decode_batches[0] == 1


@pytest.fixture
def trace(tmp_path: Path) -> Callable[..., TraceLoad]:
    """A trace of two lengths by turns, a request every 500 ms."""

    def make(**fields: Any) -> TraceLoad:
        path = tmp_path / "trace.jsonl"
        lines = [
            json.dumps(
                {
                    "timestamp": 500 * number,
                    "input_length": (600, 200)[number % 2],
                    "output_length": (10, 70)[number % 2],
                    "hash_ids": (([0, 1]), [2])[number % 2],
                }
            )
            for number in range(10)
        ]
        path.write_text("\n".join(lines) + "\n")
        return TraceLoad(
            path=str(path), sha256="0" * 64, size_bytes=1, requests=10, total_tokens=4400, **fields
        )

    return make


def test_a_trace_is_estimated_by_its_means(trace: Callable[..., TraceLoad]) -> None:
    engine = FakeEngine()
    questions = asked(engine)
    workload = {"trace_path": "trace.jsonl"}
    open_loop = searched({"gpu_budget": 4}, engine, trace=trace(), workload=workload, goal=PER_GPU)
    steps = questions[0][2]
    assert (steps.isl, steps.cached, steps.context) == (400, 0, 420)
    # Two requests a second are little: one GPU serves them as well as more.
    assert deployments(open_loop.seeds["agg"])[0] == "vllm agg 1 x (tp 1)"
    busy = searched(
        {"gpu_budget": 4},
        FakeEngine(),
        trace=trace(arrival_speedup_ratio=1000.0),
        workload={**workload, "arrival_speedup_ratio": 1000.0},
    )
    assert busy.seeds["agg"][0].config.used_gpus == 4
    closed = searched(
        {"gpu_budget": 4},
        FakeEngine(),
        trace=trace(concurrency=1),
        workload={**workload, "replay_concurrency": 1},
    )
    # One request at a time: the fastest worker, and no second one.
    assert deployments(closed.seeds["agg"])[0] == "vllm agg 1 x (tp 4)"


def test_a_rate_is_served_by_as_few_gpus_as_can() -> None:
    def gpus(rate: float) -> int:
        found = searched(
            {"gpu_budget": 8},
            workload={**LENGTHS, "num_request_ratio": 1000.0, "request_rate": rate},
            goal={"target": "goodput_per_gpu", "sla": {"e2e_ms": 5000}},
        )
        return found.seeds["agg"][0].config.used_gpus

    assert gpus(1.0) < gpus(8.0) < gpus(40.0)


def test_of_a_pool_too_large_to_estimate_round_numbers_of_replicas_stand_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spica_async.plan.estimates._MOST_ROWS", 40)
    found = searched({"gpu_budget": 32}, workload={**LENGTHS, "concurrency": 10_000})
    assert len(found.branches[0].pool) > 40
    for seed in found.seeds["agg"]:
        assert seed.config.used_gpus == 32
        assert seed.config["agg"].replicas in (32, 16, 8, 4, 2)


def test_a_pool_beyond_all_bounds_has_a_warning_and_no_seeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spica_async.plan.build._MOST_CONFIGS", 20)
    found = searched({"gpu_budget": 8, "deployment_mode": ["agg", "disagg"]})
    assert list(found.seeds) == ["agg"]
    assert found.warnings == (
        "no warm start of disagg: its 71 parallel configurations are too many to estimate",
    )


def test_seeds_are_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spica_async.plan.seeding._LOAD_STEPS", (0.25,))
    found = searched(
        {"gpu_budget": 2},
        goal={"target": "pareto"},
        workload={**LENGTHS, "kv_load_ratio": [0.0, 1.0]},
    )
    (branch,) = cast("list[dict[str, Any]]", describe_plan(found)["branches"])
    assert branch["seeds"] == [f"vllm {seed.config}, KV load 0.25" for seed in found.seeds["agg"]]
    assert branch["seeds"]
