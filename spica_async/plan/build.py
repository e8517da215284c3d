"""Makes the plan of a sweep, asking the engine for whatever only it can know."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pydantic import TypeAdapter

from schemas.config import SmartSearchConfig
from schemas.messages import TraceLoad
from schemas.presets import COMPOSITE_PRESETS, expand
from schemas.search_space import (
    DeploymentMode,
    SearchSpace,
)
from spica_async.engine.facts import (
    HardwareFacts,
    ModelFacts,
    UnknownModelError,
    UnknownSkuError,
)
from spica_async.errors import InputError
from spica_async.plan.baseline import plan_baseline
from spica_async.plan.branches import BranchBuilder
from spica_async.plan.estimates import Estimator
from spica_async.plan.load_forecast import (
    FALLBACK_PREDICTOR,
    EntryLoss,
    LoadPredictorResult,
    predictor_without_sweep,
    sweep_load_predictor,
    throughput_intervals,
)
from spica_async.plan.offered import offered_load
from spica_async.plan.scaling_policies import FilteredPolicies, filter_scaling_policies
from spica_async.plan.seeding import find_seeds
from spica_async.plan.settings import (
    check_context,
    check_ranges,
    refuse_unrepresentable,
    settings_warnings,
    without_repeats,
)
from spica_async.plan.types import (
    Dropped,
    PlanningEngine,
    Progress,
    SweepPlan,
    enumerable_points,
)
from spica_async.plan.wire import as_searched
from spica_async.space.branch import BranchSpace, Selection
from spica_async.traces.arrivals import windows_by_interval

# To look through more takes longer than to find good ones by searching.
_MOST_CONFIGS = 4_000_000
_SELECTION: Final = TypeAdapter(Selection)


def plan_sweep(
    config: SmartSearchConfig,
    engine: PlanningEngine,
    trace: TraceLoad | None,
    progress: Progress,
) -> SweepPlan:
    """Settle what a sweep searches.

    Args:
        config: a validated configuration.
        engine: the engine to ask, in this process.
        trace: the workload's trace, already checked, or None for a synthetic one.
        progress: takes a line on what is being done.

    Raises:
        InputError: if nothing could be searched, or a setting would not do what it says.
    """
    config, repeats = without_repeats(config)
    policies = filter_scaling_policies(config)
    space = config.search_space
    check_ranges(space)
    progress(f"facts about {space.model_name} on {space.hardware_sku}")
    model, hardware = _facts(space, engine)
    check_context(space, model)
    longest = space.context_length or model.max_context
    config = as_searched(config, longest)
    space = config.search_space
    _check_composites(space, engine)
    refuse_unrepresentable(space, engine)
    builder = BranchBuilder(
        config=config,
        engine=engine,
        is_moe=model.is_moe,
        longest_sequence=longest,
        progress=progress,
        dropped=_dropped_policies(policies),
        warnings=[*repeats, *settings_warnings(config, model)],
    )
    branches = builder.build()
    predictors = _forecast(space, policies, engine, trace, progress)
    builder.warnings += [
        f"no load predictor could be scored every {interval} s: {FALLBACK_PREDICTOR} stands in"
        for interval in predictors.fallback_intervals
    ]
    baseline = plan_baseline(builder)
    seeds = _seeds(builder, branches, trace)
    return SweepPlan(
        config=config,
        branches=branches,
        dropped=tuple(builder.dropped),
        warnings=tuple(builder.warnings),
        model=model,
        hardware=hardware,
        longest_sequence=longest,
        capacity=builder.capacity,
        predictors=predictors,
        backend_versions=builder.backend_versions,
        seeds=seeds,
        digest=plan_digest(branches, seeds, baseline),
        baseline=baseline,
    )


def _seeds(
    builder: BranchBuilder, branches: Sequence[BranchSpace], trace: TraceLoad | None
) -> dict[DeploymentMode, tuple[Selection, ...]]:
    config = builder.config
    searched = [space for space in branches if enumerable_points(config, space) is None]
    if not config.sweep.warm_start or not searched:
        return {}
    estimator = Estimator(
        config=config,
        engine=builder.engine,
        is_moe=builder.is_moe,
        longest_sequence=builder.longest_sequence,
        capacity=builder.capacity,
        load=offered_load(config, trace),
        progress=builder.progress,
    )
    seeds = {}
    for space in searched:
        if len(space.pool) > _MOST_CONFIGS:
            builder.warnings.append(
                f"no warm start of {space.mode}: its {len(space.pool):,} parallel configurations "
                "are too many to estimate"
            )
        else:
            seeds[space.mode] = find_seeds(estimator, space)
    if estimator.failed:
        reason = estimator.problems[0]
        builder.warnings.append(f"no warm start, for nothing could be estimated: {reason}")
    return {mode: found for mode, found in seeds.items() if found}


def _facts(space: SearchSpace, engine: PlanningEngine) -> tuple[ModelFacts, HardwareFacts]:
    try:
        hardware = engine.hardware_facts(space.hardware_sku)
    except UnknownSkuError as error:
        raise InputError(f"search_space.hardware_sku: {error}") from None
    try:
        model = engine.model_facts(space.model_name)
    except UnknownModelError as error:
        raise InputError(f"search_space.model_name: {error}") from None
    # The engine counts what a config.json names, and is content with nothing.
    if model.weight_bytes <= 0:
        raise InputError(
            f"search_space.model_name: model {space.model_name!r} cannot be modelled: by its "
            f"configuration a {model.architecture} has no weights"
        )
    return model, hardware


def _check_composites(space: SearchSpace, engine: PlanningEngine) -> None:
    for knob, presets in COMPOSITE_PRESETS.items():
        for index, entry in enumerate(getattr(space, knob)):
            # Presets are sound, and to ask for them would load the planner for nothing.
            if isinstance(entry, str):
                continue
            problem = engine.check_planner_fields(expand(entry, presets))
            if problem is not None:
                raise InputError(f"search_space.{knob}[{index}]: {problem}")


def _dropped_policies(policies: FilteredPolicies) -> list[Dropped]:
    if policies.reason is None:
        return []
    names = ", ".join(str(policy) for policy in policies.dropped)
    return [Dropped(f"planner_scaling_policy {names}", policies.reason)]


def _forecast(
    space: SearchSpace,
    policies: FilteredPolicies,
    engine: PlanningEngine,
    trace: TraceLoad | None,
    progress: Progress,
) -> LoadPredictorResult:
    intervals = throughput_intervals(policies.kept)
    settled = predictor_without_sweep(intervals, trace)
    if settled is not None or trace is None:
        return settled or LoadPredictorResult()
    entries = space.load_predictor_candidates
    progress(f"forecasting the load with {len(entries)} predictors")

    def scored(interval: int, loss: EntryLoss) -> None:
        name = loss.entry if isinstance(loss.entry, str) else loss.entry["load_predictor"]
        progress(f"forecasting the load every {interval} s: {name} has loss {loss.loss:.4f}")

    return sweep_load_predictor(
        entries,
        intervals,
        windows_by_interval(trace, intervals, engine.trace_windows),
        engine.make_predictor,
        scored,
    )


def plan_digest(
    branches: Iterable[BranchSpace],
    seeds: Mapping[DeploymentMode, Sequence[Selection]],
    baseline: Selection | None = None,
) -> str:
    """The same for plans under which a proposal means the same, and another one for others.

    Of 64 hexadecimal digits. It takes a second for the largest pools.

    Args:
        branches: of the plan.
        seeds: what each of them tries first.
        baseline: what is measured besides; none: nothing is.
    """
    digest = hashlib.sha256()
    for space in branches:
        digest.update(json.dumps(_described(space), sort_keys=True).encode())
        # The rows in full, which older journals have the digest of.
        for blocks in (space.pool.index_blocks(), space.pool.legal_blocks()):
            for block in blocks:
                digest.update(block.tobytes())
        tried = [space.assignment_of(seed) for seed in seeds.get(space.mode, ())]
        digest.update(json.dumps(tried, sort_keys=True).encode())
    if baseline is not None:
        digest.update(json.dumps(_SELECTION.dump_python(baseline, mode="json")).encode())
    return digest.hexdigest()


def _described(space: BranchSpace) -> dict[str, object]:
    return {
        "mode": space.mode,
        "knobs": [[knob.name, list(knob.entries)] for knob in (space.backend, *space.knobs)],
        "ignored": {backend: sorted(names) for backend, names in space.ignored.items()},
        "kv_load": space.kv_load,
        "gpu_budget": space.gpu_budget,
        "roles": space.pool.roles,
        "deployments": [[str(one) for one in options] for options in space.pool.deployments],
        "backends": space.pool.backends,
        "shapes": [
            (len(space.pool), len(options)) for options in (space.pool.roles, space.pool.backends)
        ],
    }
