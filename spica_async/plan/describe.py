"""A plan in plain values: for `check`, and for the results folder."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from pydantic import JsonValue

from schemas.search_space import DeploymentMode
from spica_async.plan.load_forecast import EntryLoss
from spica_async.plan.types import SweepPlan, dropped_lines
from spica_async.space.branch import BranchSpace, Selection
from spica_async.space.parameters import (
    CategoricalParameter,
    DiscreteParameter,
    FloatParameter,
    Parameter,
)

_SHOWN_DROPPED: Final = 4


def describe_plan(plan: SweepPlan) -> dict[str, JsonValue]:
    """Branches with their pools and parameters, forecasts, and what is left out, with reasons."""
    forecast = plan.predictors
    return {
        "model": asdict(plan.model),
        "hardware": asdict(plan.hardware),
        "needs_wide_ep": plan.needs_wide_ep,
        "longest_sequence": plan.longest_sequence,
        "backend_versions": {str(name): version for name, version in plan.backend_versions.items()},
        "branches": [_describe_branch(branch, plan.seeds) for branch in plan.branches],
        "baseline": None if plan.baseline is None else describe_seed(plan.baseline),
        "load_predictors": {
            "reason": forecast.reason,
            "best_by_interval": {str(i): entry for i, entry in forecast.best_by_interval.items()},
            "losses": {
                str(interval): [_describe_loss(loss) for loss in losses]
                for interval, losses in forecast.losses.items()
            },
        },
        "dropped": [asdict(dropped) for dropped in plan.dropped],
        "warnings": list(plan.warnings),
    }


def plan_notes(plan: SweepPlan) -> list[str]:
    """What the user of a sweep should know of its plan: a few lines, the rest is in `plan.json`."""
    lines = [f"left out: {line}" for line in dropped_lines(plan.dropped)]
    if len(lines) > _SHOWN_DROPPED:
        more = len(lines) - _SHOWN_DROPPED
        lines[_SHOWN_DROPPED:] = [f"left out: {more} more, with their reasons in plan.json"]
    return [*lines, *(f"warning: {warning}" for warning in plan.warnings)]


def describe_parameter(parameter: Parameter) -> str:
    """One parameter's values in a few words."""
    match parameter:
        case FloatParameter(_, low, high, default):
            text = f"{low:g} to {high:g}"
        case DiscreteParameter(_, values, log, default):
            text = ", ".join(f"{value:g}" for value in values) + (" (log)" if log else "")
        case CategoricalParameter(_, values, default):
            text = ", ".join(values)
    return text if default is None else f"{text}; starts at {default}"


def describe_seed(seed: Selection) -> str:
    """What a seed deploys, and under which load where that is searched."""
    load = "" if seed.kv_load_ratio is None else f", KV load {seed.kv_load_ratio:g}"
    return f"{seed.backend} {seed.config}{load}"


def _describe_loss(loss: EntryLoss) -> dict[str, JsonValue]:
    # JSON has no infinity; what could not be scored has no loss, and shows its problem.
    value = loss.loss if math.isfinite(loss.loss) else None
    return {"entry": loss.entry, "loss": value, "problem": loss.problem}


def _describe_branch(
    branch: BranchSpace, seeds: Mapping[DeploymentMode, Sequence[Selection]]
) -> dict[str, JsonValue]:
    fixed = [knob for knob in (branch.backend, *branch.knobs) if len(knob.entries) == 1]
    return {
        "mode": branch.mode,
        "pool": len(branch.pool),
        "pool_by_backend": {
            backend: branch.pool.count(backend) for backend in branch.pool.backends
        },
        "distinct_samples": branch.distinct_selections,
        "parameters": {p.name: describe_parameter(p) for p in branch.parameters},
        "seeds": [describe_seed(seed) for seed in seeds.get(branch.mode, ())],
        "pinned": {knob.name: knob.entries[0] for knob in fixed},
    }
