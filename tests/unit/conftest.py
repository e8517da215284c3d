"""Small sweeps to test the core with: a configuration, a branch's space, a fake candidate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.deployments import DENSE

from schemas.config import SmartSearchConfig
from schemas.goal import OptimizationTarget
from schemas.messages import Sample
from schemas.search_space import ROLES, Backend, DeploymentMode
from spica_async.config.load import load_config
from spica_async.engine.facts import HardwareFacts, ModelFacts
from spica_async.errors import InputError
from spica_async.judge.noise import Mean
from spica_async.judge.scoring import Candidate
from spica_async.plan.build import plan_digest
from spica_async.plan.load_forecast import LoadPredictorResult
from spica_async.plan.types import SweepPlan
from spica_async.space.branch import BranchSpace, Selection
from spica_async.space.capacity import CapacityKey
from spica_async.space.knobs import Knob, active_knobs
from spica_async.space.pool import MenuPool, ParallelConfig
from spica_async.space.product import ProductPool, enumerate_pool
from spica_async.space.sample import SampleContext, unroll_sample
from spica_async.space.shapes import ParallelShape

REQUIRED = {"model_name": "a/model", "hardware_sku": "some_gpu"}
CLOSED_LOOP = {
    "concurrency": 4,
    "isl": 1000,
    "osl": 100,
    "num_request_ratio": 2.0,
    "window": "whole",  # what scripted workers answer has no other
}
# One entry of every knob, so that a test searches what it names and nothing else.
PINNED = {
    "deployment_mode": ["agg"],
    "backend": ["vllm"],
    "gpu_budget": 4,
    "prefill_max_num_batched_tokens": [8192],
    "prefill_max_num_seqs": [4],
    "decode_max_num_seqs": [256],
    "agg_max_num_batched_tokens": [8192],
    "agg_max_num_seqs": [256],
    "router_mode": ["round_robin"],
    "overlap_score_credit": [1.0],
    "prefill_load_scale": [1.0],
    "router_temperature": [0.0],
    "host_cache_hit_weight": [0.75],
    "disk_cache_hit_weight": [0.25],
    "planner_scaling_policy": ["disabled"],
    "planner_fpm_sampling": ["default"],
    "planner_load_sensitivity": ["default"],
}
CAPACITY_TOKENS = 100_000


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str | bytes], SmartSearchConfig]:
    """Load a configuration from a file with this text."""

    def load_text(text: str | bytes) -> SmartSearchConfig:
        path = tmp_path / "sweep.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return load_config(path)

    return load_text


@pytest.fixture
def load_blocks(
    load: Callable[[str | bytes], SmartSearchConfig],
) -> Callable[..., SmartSearchConfig]:
    """Load a configuration from a file with these blocks, beside what is required."""

    def load_document(
        *,
        space: Mapping[Any, Any] | None = None,
        workload: Mapping[str, Any] | None = None,
        goal: Mapping[str, Any] | None = None,
        sweep: Mapping[str, Any] | None = None,
    ) -> SmartSearchConfig:
        document = {
            "search_space": {**REQUIRED, **(space or {})},
            "workload": CLOSED_LOOP if workload is None else dict(workload),
            "goal": dict(goal or {}),
            "sweep": dict(sweep or {}),
        }
        return load(yaml.safe_dump(document))

    return load_document


@pytest.fixture
def problem_of(load_blocks: Callable[..., SmartSearchConfig]) -> Callable[..., str]:
    """The one problem that is found in these blocks, without the line that names the file."""

    def problem(**blocks: Mapping[str, Any]) -> str:
        with pytest.raises(InputError) as refusal:
            load_blocks(**blocks)
        first, *problems = str(refusal.value).splitlines()
        assert first.endswith("sweep.yaml:")
        assert len(problems) == 1, problems
        return problems[0].strip()

    return problem


@pytest.fixture(scope="session")
def make_config() -> Callable[..., SmartSearchConfig]:
    """A configuration with nothing to choose but what the search space's overrides bring."""

    def make(
        space: Mapping[str, Any] | None = None,
        workload: Mapping[str, Any] | None = None,
        goal: Mapping[str, Any] | None = None,
        sweep: Mapping[str, Any] | None = None,
        *,
        confirm: Mapping[str, Any] | None = None,
        baseline: object = None,
    ) -> SmartSearchConfig:
        return SmartSearchConfig.model_validate(
            {
                "search_space": {**REQUIRED, **PINNED, **(space or {})},
                "workload": CLOSED_LOOP if workload is None else workload,
                "goal": goal or {},
                "sweep": sweep or {},
                "confirm": confirm or {},
                "baseline": baseline,
            }
        )

    return make


@pytest.fixture(scope="session")
def make_space() -> Callable[..., BranchSpace]:
    """The first branch of a configuration over plain TP shapes, or over a given pool."""

    def make(
        config: SmartSearchConfig,
        *,
        mode: DeploymentMode | None = None,
        sizes: tuple[int, ...] = (2,),
        pool: MenuPool | ProductPool | None = None,
        ignored: Mapping[Backend, Mapping[str, str]] | None = None,
    ) -> BranchSpace:
        space = config.search_space
        mode = mode or space.deployment_mode[0]
        if pool is None:
            shapes = {ParallelShape(size) for size in sizes}
            by_role = dict.fromkeys(ROLES[mode], shapes)
            pool = enumerate_pool(
                ROLES[mode], dict.fromkeys(space.backend, by_role), gpu_budget=space.gpu_budget
            )
        reasons: dict[Backend, Mapping[str, str]] = {backend: {} for backend in space.backend}
        reasons |= ignored or {}
        knobs, _ = active_knobs(space, mode, reasons)
        return BranchSpace(
            mode=mode,
            backend=Knob("backend", tuple(space.backend)),
            pool=pool,
            knobs=tuple(knobs),
            ignored={backend: frozenset(by_knob) for backend, by_knob in reasons.items()},
            kv_load=config.kv_load,
            gpu_budget=space.gpu_budget,
        )

    return make


@pytest.fixture(scope="session")
def make_context() -> Callable[..., SampleContext]:
    """What samples have in common where every shape has the same KV capacity, or one by shape."""

    def make(config: SmartSearchConfig, space: BranchSpace, **overrides: Any) -> SampleContext:
        searched = config.search_space
        capacity = {
            CapacityKey(backend, role, deployment.shape, batched): CAPACITY_TOKENS
            for backend in space.pool.backends
            for role, deployments in zip(space.pool.roles, space.pool.deployments, strict=True)
            for deployment in deployments
            for batched in getattr(searched, f"{role}_max_num_batched_tokens")
        }
        fields = {
            "space": searched,
            "is_moe": False,
            "longest_sequence": 8192,
            "capacity": capacity,
            "predictors": {180: "kalman_default_raw", 600: "prophet_w20_log1p"},
            "planner_target": config.goal.target.planner_optimization_target,
            "isl": config.workload.isl or 0,
            "osl": config.workload.osl or 0,
        }
        return SampleContext(**{**fields, **overrides})

    return make


@pytest.fixture(scope="session")
def make_candidate() -> Callable[..., Candidate]:
    """A candidate with just what ranking and the front look at."""

    def make(
        name: str,
        *,
        score: float = 0.0,
        gpus: int = 1,
        branch: str = "agg",
        number: int = 0,
        objectives: Mapping[OptimizationTarget, float] | None = None,
    ) -> Candidate:
        return Candidate(
            candidate_id=name,
            branch=branch,
            number=number,
            sample={},
            reports=({},),
            report={},
            means={target: Mean(value, 0.0, 0) for target, value in (objectives or {}).items()},
            score=score,
            used_gpus=gpus,
        )

    return make


@pytest.fixture(scope="session")
def make_sweep_plan(
    make_space: Callable[..., BranchSpace], make_context: Callable[..., SampleContext]
) -> Callable[..., SweepPlan]:
    """The plan of a configuration: a branch per listed mode, every shape with KV room."""

    def make(
        config: SmartSearchConfig, *, baseline: Selection | None = None, **spaces: Any
    ) -> SweepPlan:
        modes = config.search_space.deployment_mode
        branches = tuple(make_space(config, mode=mode, **spaces) for mode in modes)
        capacity = {
            key: tokens
            for branch in branches
            for key, tokens in make_context(config, branch).capacity.items()
        }
        return SweepPlan(
            config=config,
            branches=branches,
            dropped=(),
            warnings=(),
            model=ModelFacts("a/model", "AnyForCausalLM", False, 8192, 10**9),  # noqa: FBT003  # dense
            hardware=HardwareFacts("some_gpu", 8, 10**11),
            longest_sequence=8192,
            capacity=capacity,
            predictors=LoadPredictorResult(),
            backend_versions=dict.fromkeys(config.search_space.backend, "1"),
            digest=plan_digest(branches, {}),
            baseline=baseline,
        )

    return make


@pytest.fixture(scope="session")
def unroll(
    make_config: Callable[..., SmartSearchConfig],
    make_space: Callable[..., BranchSpace],
    make_context: Callable[..., SampleContext],
) -> Callable[..., Sample]:
    """Unroll what a configuration pins, with these knobs chosen."""

    def unroll_pinned(
        space: Mapping[str, Any] | None = None,
        *,
        knobs: Mapping[str, Any] | None = None,
        config: ParallelConfig = DENSE,
        backend: Backend = "vllm",
        **overrides: Any,
    ) -> Sample:
        mode: DeploymentMode = "agg" if config is DENSE else "disagg"
        searched = make_config({"deployment_mode": [mode], **(space or {})})
        branch = make_space(searched, sizes=(1,))
        chosen = {knob.name: knob.entries[0] for knob in branch.knobs} | dict(knobs or {})
        context = make_context(searched, branch, **overrides)
        return unroll_sample(context, Selection(mode, backend, config, chosen))

    return unroll_pinned
