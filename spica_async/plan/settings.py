"""Settings that do nothing, or not what they say: what a plan warns of, and what it refuses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from schemas.config import SmartSearchConfig
from schemas.presets import COMPOSITE_PRESETS
from schemas.search_space import (
    ADMISSION_SCALARS,
    OFFLOAD_SCALARS,
    ROLES,
    SEARCH_CHOICES,
    Backend,
    SearchSpace,
)
from spica_async.engine.capability import LEAST_BLOCK_SIZE, MOST_SPECULATION
from spica_async.engine.config import MEMORY_FRACTION_KEYS
from spica_async.engine.facts import ModelFacts
from spica_async.errors import InputError
from spica_async.plan.types import PlanningEngine
from spica_async.space.knobs import (
    OFFLOAD_WEIGHTS,
    ROUTER_WEIGHTS,
    enables,
    scales,
)

_NO_OFFLOAD: Final = "num_g2_blocks is 0"
# The engine counts them in 64 bits.
_MOST_OFFLOADED_BYTES: Final = 2**60
_HARDLY_ANY_ROOM: Final = 0.95
"""What a server takes of a GPU's memory beside weights and KV cache, it has on any GPU: CUDA's own
context, graphs and the workspaces of kernels come to some gigabytes."""
_OWN_MEMORY_FRACTIONS: Final[Mapping[Backend, float]] = {"sglang": 0.88}
"""Where a backend's own default is not ours."""
_LONG_CONTEXT: Final[Mapping[Backend, tuple[str, str]]] = {
    "vllm": ("--hf-overrides", "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"),
    "sglang": (
        "--json-model-override-args and SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
    ),
    "trtllm": ("the checkpoint's config.json", "TLLM_ALLOW_LONG_MAX_MODEL_LEN=1"),
}
"""Where a server takes rope scaling from, and what lifts its limit without any."""


def without_repeats(config: SmartSearchConfig) -> tuple[SmartSearchConfig, list[str]]:
    """The configuration with each entry of a list once, and a warning for each that was dropped."""
    space = config.search_space
    unique: dict[str, list[object]] = {}
    warnings = []
    for name in (*SEARCH_CHOICES, *COMPOSITE_PRESETS, "parallel_configs"):
        entries: list[object] = []
        for entry in getattr(space, name):
            if entry in entries:
                shown = entry if isinstance(entry, str | int | float | dict) else "an entry"
                warnings.append(f"{name} lists {shown} twice: once is enough")
            else:
                entries.append(entry)
        # Pinned shapes are spoken of by their place, and the pool has each of them once.
        if name != "parallel_configs":
            unique[name] = entries
    space = space.model_copy(update=unique)
    return config.model_copy(update={"search_space": space}), warnings


def check_context(space: SearchSpace, model: ModelFacts) -> None:
    """Refuse a context that no server of this model starts with.

    Raises:
        InputError: it is over what the model's configuration and its documentation allow.
    """
    length = space.context_length or 0
    longest = model.extension.longest if model.extension else model.max_context
    if length <= max(longest, model.max_context):
        return
    beyond = f"; with rope scaling its documentation goes to {longest}" if model.extension else ""
    raise InputError(
        f"search_space.context_length: {length} is over the {model.max_context} tokens that the"
        f" configuration of {space.model_name} allows{beyond}, so that no server starts with it;"
        " give a model folder whose config.json has the rope_scaling of your servers"
    )


def check_ranges(space: SearchSpace) -> None:
    """Refuse a number that the engine takes for no shape at all.

    Raises:
        InputError: the message names it.
    """
    if (space.aic_nextn or 0) > MOST_SPECULATION:
        raise InputError(
            f"search_space.aic_nextn: {space.aic_nextn}; allowed: {MOST_SPECULATION} at most"
        )
    for backend, least in LEAST_BLOCK_SIZE.items():
        for name in _of_each_role(space, "block_size"):
            if backend in space.backend and getattr(space, name) < least:
                raise InputError(
                    f"search_space.{name}: {getattr(space, name)}; allowed: {least} or more, since"
                    f" backend lists {backend}"
                )
    for name in _of_each_role(space, "block_size"):
        block_bytes = getattr(space, name) * (space.kv_bytes_per_token or 0)
        if space.num_g2_blocks * block_bytes > _MOST_OFFLOADED_BYTES:
            raise InputError(
                f"search_space.num_g2_blocks: {space.num_g2_blocks} blocks of {block_bytes} bytes"
                " are more than any host has; allowed: 2^60 bytes in all"
            )


def settings_warnings(config: SmartSearchConfig, model: ModelFacts) -> list[str]:
    """What the user should know of the settings before anything is searched.

    Args:
        config: as it is searched.
        model: that it names.
    """
    space = config.search_space
    warnings = _inert_settings(space, is_moe=model.is_moe)
    workload = config.workload
    if workload.replay_concurrency is not None and workload.arrival_speedup_ratio != 1.0:
        warnings.append(
            "arrival_speedup_ratio has no effect: replay_concurrency ignores arrival times"
        )
    return [*warnings, *_context_warnings(space, model), *_memory_warnings(space)]


def _context_warnings(space: SearchSpace, model: ModelFacts) -> list[str]:
    length = space.context_length or 0
    if length <= model.max_context or model.extension is None:
        return []
    scaled = model.extension.trained_for is not None
    means = ", ".join(
        f"{backend}: {scaling if scaled else limit}"
        for backend, (scaling, limit) in _LONG_CONTEXT.items()
        if backend in space.backend
    )
    warning = (
        f"context_length {length} is over the {model.max_context} tokens of the model's"
        f" configuration: its servers start only with {model.extension.setting(length)} ({means})"
    )
    return [warning]


def _memory_warnings(space: SearchSpace) -> list[str]:
    """Memory that no server has, and where a backend's own default is another than ours."""
    names = _of_each_role(space, "gpu_memory_utilization")
    keys = ", ".join(MEMORY_FRACTION_KEYS[backend] for backend in space.backend)
    warnings = [
        f"{name} {getattr(space, name):g} leaves a server next to no room beside weights and KV"
        f" cache: it will hardly start with that ({keys})"
        for name in names
        if getattr(space, name) >= _HARDLY_ANY_ROOM
    ]
    unset = [name for name in names if not space.is_set(name)]
    return warnings + [
        f"{', '.join(unset)} {getattr(space, unset[0]):g} is the default here, {backend}'s own is"
        f" {own:g}: set the same here and on your servers"
        for backend, own in _OWN_MEMORY_FRACTIONS.items()
        if backend in space.backend and unset
    ]


def _of_each_role(space: SearchSpace, scalar: str) -> list[str]:
    return [f"{role}_{scalar}" for mode in space.deployment_mode for role in ROLES[mode]]


def _inert_settings(space: SearchSpace, *, is_moe: bool) -> list[str]:
    """A warning for each setting that was written down and cannot matter beside the others."""
    inert: dict[str, str] = {}
    for mode, roles in ROLES.items():
        if mode not in space.deployment_mode:
            prefixes = tuple(f"{role}_" for role in roles)
            named = [n for n in SearchSpace.model_fields if n.startswith(prefixes)]
            reason = f"deployment_mode has no {mode}"
            inert |= dict.fromkeys((n for n in named if n != "prefill_load_scale"), reason)
    if "kv_router" not in space.router_mode:
        reason = "router_mode has no kv_router"
        inert |= dict.fromkeys((*ROUTER_WEIGHTS, *OFFLOAD_WEIGHTS, *ADMISSION_SCALARS), reason)
    elif not space.num_g2_blocks:
        inert |= dict.fromkeys(OFFLOAD_WEIGHTS, _NO_OFFLOAD)
    if not space.num_g2_blocks:
        inert |= dict.fromkeys(OFFLOAD_SCALARS, _NO_OFFLOAD)
    policies = space.planner_scaling_policy
    if not any(scales(policy) for policy in policies):
        reason = "no planner_scaling_policy that is searched scales"
        planner = ("planner_fpm_sampling", "planner_load_sensitivity")
        inert |= dict.fromkeys((*planner, "min_endpoint", "startup_time"), reason)
    if not any(enables(policy, "throughput") for policy in policies):
        reason = "no planner_scaling_policy that is searched scales by throughput"
        inert["load_predictor_candidates"] = reason
    if not is_moe:
        inert["moe_backend"] = "the model has no experts"
    elif "sglang" not in space.backend:
        inert["moe_backend"] = "backend has no sglang"
    return [
        f"{name} has no effect: {reason}" for name, reason in inert.items() if space.is_set(name)
    ]


def refuse_unrepresentable(space: SearchSpace, engine: PlanningEngine) -> None:
    """Refuse a setting that would matter, and that the engine has no counterpart of.

    Raises:
        InputError: the message names it.
    """
    for name, reason in engine.unrepresentable_scalars.items():
        without_effect = name in OFFLOAD_SCALARS and not space.num_g2_blocks
        if space.is_set(name) and not without_effect:
            raise InputError(f"search_space.{name}: {reason}; remove it")
