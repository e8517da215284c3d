"""What this engine version can replay, and which settings it does not hear.

The tables are light: nothing of the engine is imported for them. They were filled from replays,
and the slow tests replay each entry again, so that another engine version shows where it differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from schemas.goal import PlannerTarget
from schemas.messages import Sample, SyntheticLoad
from schemas.search_space import Backend
from spica_async.engine.evaluation import replay, replay_arguments
from spica_async.engine.refusals import one_line

UNREPRESENTABLE_SCALARS: Final[Mapping[str, str]] = MappingProxyType(
    {"offload_batch_size": "the replay copies each block by itself: it has no batches"}
)
"""Scalars without a counterpart in the engine, and why: an error where one is set."""

MOST_SPECULATION: Final = 5
"""The greatest `aic_nextn` of the engine; its least is 1, and 0 is off."""

LEAST_BLOCK_SIZE: Final[Mapping[str, int]] = MappingProxyType({"vllm": 2, "sglang": 1, "trtllm": 2})
"""By backend, the tokens that a KV block of a replay has at least."""

_IGNORED_ALWAYS: Final = {
    "disk_cache_hit_weight": "the replay has no disk tier, so no block is ever found there",
}
_IGNORED_WITHOUT_OFFLOAD: Final = {
    "host_cache_hit_weight": "the replay offloads KV blocks for vllm alone",
}
# Under these targets the planner compares queues and caches with thresholds of its own.
_WITHOUT_SLA: Final = "the planner reads it under its sla target alone"
_UNREAD_WITHOUT_SLA: Final = {
    "planner_fpm_sampling": _WITHOUT_SLA,
    "planner_load_sensitivity": _WITHOUT_SLA,
}
_PROBE_LOAD: Final = SyntheticLoad(isl=128, osl=2, requests=1, concurrency=1)
_PROBE_OVERRIDES: Final[Mapping[str, Any]] = {
    "router_mode": "round_robin",
    "enable_throughput_scaling": False,
    "enable_load_scaling": False,
}


def probe_replay(sample: Sample) -> str | None:
    """Why the engine cannot replay this sample's backend in its mode; None if it can.

    One request is replayed, without router and planner: what fails then fails always, so any
    error is the answer.

    Raises:
        KeyError: if the sample lacks a field.
    """
    try:
        replay(_PROBE_LOAD, replay_arguments({**sample, **_PROBE_OVERRIDES}, sla=None))
    except KeyError:
        raise
    except Exception as error:  # noqa: BLE001 - see above
        return one_line(error)
    return None


def ignored_knobs(backend: Backend) -> Mapping[str, str]:
    """The searchable knobs that replays of a backend do not hear, in either mode, and why."""
    return _IGNORED_ALWAYS | ({} if backend == "vllm" else _IGNORED_WITHOUT_OFFLOAD)


def unread_planner_knobs(planner_target: PlannerTarget) -> Mapping[str, str]:
    """The planner's knobs that it does not read under a target, and why.

    Args:
        planner_target: What the planner optimises under the sweep's goal.
    """
    return {} if planner_target == "sla" else _UNREAD_WITHOUT_SLA
