"""Which knobs one branch searches: those of its mode that can change a replay."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from schemas.presets import COMPOSITE_PRESETS, SCALING_POLICIES, expand
from schemas.search_space import (
    ROLES,
    SEARCH_CHOICES,
    Backend,
    CompositeEntry,
    DeploymentMode,
    SearchSpace,
)
from spica_async.space.parameters import (
    CategoricalParameter,
    DiscreteParameter,
    Parameter,
    ParameterValue,
)

ROUTER_WEIGHTS = ("overlap_score_credit", "prefill_load_scale", "router_temperature")
OFFLOAD_WEIGHTS = ("host_cache_hit_weight", "disk_cache_hit_weight")
PLANNER_COMPOSITES = (
    "planner_scaling_policy",
    "planner_fpm_sampling",
    "planner_load_sensitivity",
)


@dataclass(frozen=True, slots=True)
class Knob:
    """One list knob with its entries as written: numbers, strings, or mappings of a composite."""

    name: str
    entries: tuple[JsonValue, ...]

    def parameter(self) -> Parameter | None:
        """The study's parameter, or None where one entry is left and nothing is to be chosen."""
        if len(self.entries) == 1:
            return None
        if all(isinstance(entry, int | float) for entry in self.entries):
            values = tuple(
                sorted(entry for entry in self.entries if isinstance(entry, int | float))
            )
            # Limits of the scheduler double from choice to choice; most weights start at zero.
            return DiscreteParameter(self.name, values, log=_is_limit(self.name))
        return CategoricalParameter(self.name, tuple(_label(entry) for entry in self.entries))

    def entry(self, value: ParameterValue) -> JsonValue:
        """The entry behind a parameter's value."""
        if isinstance(value, str):
            return next(entry for entry in self.entries if _label(entry) == value)
        return value

    def value(self, entry: JsonValue) -> ParameterValue:
        """The parameter's value that stands for an entry: numbers for themselves, else a label."""
        return entry if isinstance(entry, int | float) else _label(entry)


def enables(policy: CompositeEntry, loop: str) -> bool:
    """Whether a scaling policy runs the `throughput` or the `load` loop."""
    return bool(expand(policy, SCALING_POLICIES)[f"enable_{loop}_scaling"])


def engine_knob_names(mode: DeploymentMode) -> list[str]:
    """The engine knobs of the mode's roles."""
    prefixes = tuple(f"{role}_max_" for role in ROLES[mode])
    return [name for name in SEARCH_CHOICES if name.startswith(prefixes)]


def active_knobs(
    space: SearchSpace,
    mode: DeploymentMode,
    ignored: Mapping[Backend, Mapping[str, str]],
) -> tuple[list[Knob], dict[str, str]]:
    """The knobs of one branch, without those that could not change any of its replays.

    Args:
        space: the search space, its scaling policies already filtered for the goal.
        mode: the branch's deployment mode.
        ignored: for each viable backend, the knobs that its replay ignores and why.

    Returns:
        The knobs, pinned ones included; and those left out because every backend ignores them,
        each with the reason of the first.
    """
    names = [*engine_knob_names(mode), "router_mode"]
    if "kv_router" in space.router_mode:
        names += ROUTER_WEIGHTS
        if space.num_g2_blocks:
            names += OFFLOAD_WEIGHTS
    names += _planner_names(space.planner_scaling_policy)
    knobs: list[Knob] = []
    unheard: dict[str, str] = {}
    for name in names:
        reasons = [by_knob[name] for by_knob in ignored.values() if name in by_knob]
        if reasons and len(reasons) == len(ignored):
            unheard[name] = reasons[0]
        else:
            knobs.append(Knob(name, tuple(getattr(space, name))))
    return knobs, unheard


def scales(policy: CompositeEntry) -> bool:
    """Whether a scaling policy runs any loop, and so the planner at all."""
    return enables(policy, "throughput") or enables(policy, "load")


def planner_effect(choice: Mapping[str, JsonValue]) -> str:
    """A canonical text of what planner composites do to a replay, however they are written.

    Args:
        choice: a scaling policy, and those of the other composites that matter under it.
    """
    effect: dict[str, JsonValue] = {}
    for knob, entry in choice.items():
        assert isinstance(entry, str | dict)  # noqa: S101  # validated with the configuration
        effect |= expand(entry, COMPOSITE_PRESETS[knob])
    if not effect["enable_throughput_scaling"]:
        del effect["throughput_adjustment_interval_seconds"]
        if not effect["enable_load_scaling"]:
            del effect["load_adjustment_interval_seconds"]
    return json.dumps(effect, sort_keys=True)


def _planner_names(policies: Sequence[CompositeEntry]) -> list[str]:
    # Without a planner there is nothing for the others to set.
    return list(PLANNER_COMPOSITES[: None if any(map(scales, policies)) else 1])


def _is_limit(name: str) -> bool:
    return "_max_" in name


def _label(entry: JsonValue) -> str:
    return entry if isinstance(entry, str) else json.dumps(entry, sort_keys=True)
