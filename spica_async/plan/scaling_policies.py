"""Which planner scaling policies a sweep's goal leaves to search."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.config import SmartSearchConfig
from schemas.search_space import CompositeEntry
from spica_async.errors import InputError
from spica_async.space.knobs import enables, scales

_FIELD = "search_space.planner_scaling_policy"


@dataclass(frozen=True, slots=True)
class FilteredPolicies:
    """The policies to search, and those that the goal rules out, with the one reason for it."""

    kept: tuple[CompositeEntry, ...]
    dropped: tuple[CompositeEntry, ...] = ()
    reason: str | None = None


def filter_scaling_policies(config: SmartSearchConfig) -> FilteredPolicies:
    """Drop the policies that the planner could not run under the goal.

    Predictive throughput scaling works towards TTFT and ITL levels. Without a goodput goal there
    are none, so the policies that use it go. Under a goodput goal with an end-to-end level alone
    the planner has no target at all, so only static policies stay.

    Raises:
        InputError: if no policy is left.
    """
    policies = config.search_space.planner_scaling_policy
    goal = config.goal
    if goal.target.planner_optimization_target != "sla":
        reason = (
            f"throughput scaling plans for an SLA, which goal {goal.target} has not; "
            "disabled and load policies can be searched"
        )
        kept = tuple(policy for policy in policies if not enables(policy, "throughput"))
    elif goal.sla is not None and not goal.sla.has_token_levels:
        reason = (
            "planner scaling needs goal.sla.ttft_ms and itl_ms; with e2e_ms alone only static "
            "policies such as disabled can be searched"
        )
        kept = tuple(policy for policy in policies if not scales(policy))
    else:
        return FilteredPolicies(tuple(policies))
    if not kept:
        raise InputError(f"{_FIELD}: none of the listed policies is left: {reason}")
    dropped = tuple(policy for policy in policies if policy not in kept)
    return FilteredPolicies(kept, dropped, reason if dropped else None)
