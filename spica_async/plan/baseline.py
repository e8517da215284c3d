"""The baseline of a sweep: the deployment that its candidates are held against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from schemas.search_space import ROLES, Backend, DeploymentMode, PinnedPair, PinnedShape
from spica_async.engine.default_shape import NoDefaultShapeError
from spica_async.errors import InputError
from spica_async.plan.branches import BranchBuilder, parallel_config
from spica_async.space.branch import Selection
from spica_async.space.knobs import OFFLOAD_WEIGHTS, ROUTER_WEIGHTS
from spica_async.space.pool import ParallelConfig

_DEFAULTS: Final[Mapping[str, JsonValue]] = {
    # The frontend's, and there is no planner unless one is deployed.
    "router_mode": "round_robin",
    "planner_scaling_policy": "disabled",
    "planner_fpm_sampling": "default",
    "planner_load_sensitivity": "default",
    # Those of Dynamo's engine in replays, for all backends.
    **{f"{role}_max_num_batched_tokens": 8192 for roles in ROLES.values() for role in roles},
    **{f"{role}_max_num_seqs": 256 for roles in ROLES.values() for role in roles},
}
"""What Dynamo does where it is not told, by the knob that tells it."""


def plan_baseline(builder: BranchBuilder) -> Selection | None:
    """The baseline that a sweep asks for, as a selection; none: it asks for none.

    A knob of which one entry is listed has that one. Any other is as Dynamo has it by default.

    Args:
        builder: has built the branches of the sweep, and learns the capacity of one more shape.

    Raises:
        InputError: it cannot be replayed.
    """
    config = builder.config
    if config.baseline is None:
        return None
    backend = next(one for one in config.search_space.backend if one in builder.backend_versions)
    shape = config.baseline
    if shape == "default":
        shape = _default_shape(builder, backend)
    mode: DeploymentMode = "disagg" if isinstance(shape, PinnedPair) else "agg"
    deployed = parallel_config(mode, shape)
    selection = Selection(mode, backend, deployed, _knobs(builder), _kv_load(builder))
    _check_gpus(builder, deployed)
    problem = builder.problem_of(selection)
    if problem is not None:
        raise InputError(f"baseline: {backend} cannot run {deployed}: {problem}")
    return selection


def _default_shape(builder: BranchBuilder, backend: Backend) -> PinnedShape:
    space = builder.config.search_space
    try:
        return builder.engine.default_shape(
            space.model_name, space.hardware_sku, backend, space.gpu_budget
        )
    except NoDefaultShapeError as error:
        raise InputError(f"baseline: there is no default; give its shape: {error}") from None


def _knobs(builder: BranchBuilder) -> dict[str, JsonValue]:
    space = builder.config.search_space
    knobs: dict[str, JsonValue] = {}
    for name in (*_DEFAULTS, *ROUTER_WEIGHTS, *OFFLOAD_WEIGHTS):
        entries: list[JsonValue] = getattr(space, name)
        if len(entries) == 1:
            knobs[name] = entries[0]
        elif name in _DEFAULTS:
            knobs[name] = _DEFAULTS[name]
    return knobs


def _kv_load(builder: BranchBuilder) -> float | None:
    load = builder.config.kv_load
    assert not isinstance(load, tuple)  # noqa: S101  # the configuration would be refused
    return load


def _check_gpus(builder: BranchBuilder, deployed: ParallelConfig) -> None:
    budget = builder.config.search_space.gpu_budget
    if deployed.used_gpus > budget:
        raise InputError(f"baseline: uses {deployed.used_gpus} GPUs, gpu_budget has {budget}")
