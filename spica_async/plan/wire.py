"""What passes between the coordinator and the planning process: frames of JSON, both ways.

So what a broken process writes is parsed and never executed. The child reads one request:

    {"config": {...}, "trace": {...} or null}

It writes answers of which each is an object with one key:

    {"progress": "a line"}
    {"log": {"event": ..., "level": ..., ...}}
    {"plan": {...}}
    {"input_error": "what is wrong with the configuration"}
    {"fault": "the traceback"}

The last three end it. A plan has no configuration: the coordinator has that already, and works out
what planning makes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, get_type_hints

from pydantic import TypeAdapter

from schemas.config import SmartSearchConfig
from spica_async.plan.scaling_policies import filter_scaling_policies
from spica_async.plan.settings import without_repeats
from spica_async.plan.types import PlanRequest, SweepPlan
from spica_async.space.capacity import CapacityKey

MAX_ANSWER_BYTES: Final = 64 * 2**20
"""A longer answer is no answer: the largest plans have some megabytes."""


_REQUEST: Final = TypeAdapter(PlanRequest)
_CAPACITY: Final = TypeAdapter(tuple[tuple[CapacityKey, int | str], ...])
_FIELDS: Final[dict[str, TypeAdapter[Any]]] = {
    name: TypeAdapter(hint)
    for name, hint in get_type_hints(SweepPlan).items()
    if name not in {"config", "capacity"}
}


def encode_request(request: PlanRequest) -> bytes:
    """The request as one frame holds it."""
    return _REQUEST.dump_json(request, exclude_unset=True)


def decode_request(payload: bytes) -> PlanRequest:
    """The request that a frame holds."""
    return _REQUEST.validate_json(payload)


def encode_plan(plan: SweepPlan) -> dict[str, Any]:
    """The plan of a configuration as JSON can say it."""
    # The table's keys are no texts.
    document = {"capacity": _CAPACITY.dump_python(tuple(plan.capacity.items()), mode="json")}
    for name, kind in _FIELDS.items():
        document[name] = kind.dump_python(getattr(plan, name), mode="json")
    return document


def decode_plan(config: SmartSearchConfig, document: Mapping[str, object]) -> SweepPlan:
    """The plan of a configuration, from what `encode_plan` has made of it.

    Raises:
        ValidationError: it is none.
    """
    values = {name: kind.validate_python(document.get(name)) for name, kind in _FIELDS.items()}
    return SweepPlan(
        config=as_searched(config, values["longest_sequence"]),
        capacity=dict(_CAPACITY.validate_python(document.get("capacity"))),
        **values,
    )


def as_searched(config: SmartSearchConfig, longest_sequence: int) -> SmartSearchConfig:
    """A configuration without repeats and what its goal rules out, and with what it left open.

    Args:
        config: as it was given.
        longest_sequence: tokens of the longest sequence that a worker must hold.

    Raises:
        InputError: if nothing is left of it.
    """
    config, _ = without_repeats(config)
    policies = list(filter_scaling_policies(config).kept)
    # The engine is always given its longest sequence: some of its planner's decisions need it.
    update = {"planner_scaling_policy": policies, "context_length": longest_sequence}
    space = config.search_space.model_copy(update=update)
    return config.model_copy(update={"search_space": space})
