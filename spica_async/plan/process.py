"""Has a plan made in a process of its own, so that the engine is never loaded here."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from typing import Final

import structlog
from pydantic import ValidationError

from schemas.config import SmartSearchConfig
from schemas.messages import TraceLoad
from spica_async.engine.own_files import own_settings
from spica_async.errors import InputError, SpicaError, keep_traceback
from spica_async.plan.types import PlanRequest, Progress, SweepPlan
from spica_async.plan.wire import MAX_ANSWER_BYTES, decode_plan, encode_request
from spica_async.processes.child import (
    Child,
    ChildDiedError,
    ChildOutgrownError,
    child_environment,
)
from spica_async.processes.memory import child_memory_limit
from spica_async.processes.shielded import shielded
from spica_async.processes.threads import computed

_GARBAGE: Final = "the planning process wrote garbage"
_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "critical"})
_TOO_LARGE: Final = "the sweep is too large to be planned"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """What the planning of one sweep may take.

    Attributes:
        seconds: many times what the slowest plan was seen to take.
        memory_bytes: resident; none: see `child_memory_limit`.
    """

    seconds: float = 3600.0
    memory_bytes: int | None = None


async def make_plan(
    config: SmartSearchConfig,
    trace: TraceLoad | None,
    progress: Progress,
    limits: PlanLimits = PlanLimits(),  # it never changes
) -> SweepPlan:
    """Settle what a sweep searches.

    Raises:
        InputError: if the configuration cannot be searched, or not be planned within the limits.
        SpicaError: if the engine failed while it was asked; the message names the file in which
            its traceback is kept.
    """
    memory_bytes = limits.memory_bytes or child_memory_limit()
    steps = _Steps(progress)
    with tempfile.TemporaryFile() as output:
        child = await Child.start(
            "spica_async.plan.child",
            environment=child_environment(**own_settings()),
            output=output,
            max_answer_bytes=MAX_ANSWER_BYTES,
        )
        try:
            child.watch_memory(memory_bytes)
            child.send(encode_request(PlanRequest(config, trace)))
            async with asyncio.timeout(limits.seconds):
                return await _plan_of(child, config, steps)
        except TimeoutError:
            raise InputError(
                f"{_TOO_LARGE}: it took more than {limits.seconds:g} s{steps.last}"
            ) from None
        except ChildOutgrownError as death:
            raise InputError(f"{_TOO_LARGE}: it {death}{steps.last}") from None
        except ChildDiedError as death:
            output.seek(0)
            said = output.read().decode(errors="replace")
            detail = f": {keep_traceback(said)}" if said else ""
            raise SpicaError(f"the planning process {death}{detail}") from None
        finally:
            await shielded(child.end())


class _Steps:
    """Passes on what is being done, and keeps the last of it."""

    def __init__(self, progress: Progress) -> None:
        self.last = ""
        self._progress = progress

    def __call__(self, line: str) -> None:
        self.last = f", at: {line}"
        self._progress(line)


async def _plan_of(child: Child, config: SmartSearchConfig, progress: Progress) -> SweepPlan:
    while True:
        match await child.receive_json():
            case {"progress": str(line)}:
                progress(line)
            case {"log": dict(line)}:
                _log(**{str(name): str(value) for name, value in line.items()})
            case {"plan": dict(document)}:
                return await computed(read_plan, config, document)
            case {"input_error": str(message)}:
                raise InputError(message)
            case {"fault": str(detail)}:
                raise SpicaError(
                    f"the engine failed while the sweep was planned: {keep_traceback(detail)}"
                )
            case _:
                raise SpicaError(_GARBAGE)


def _log(*, event: str = "", level: str = "info", **fields: str) -> None:
    """Log a line of the child's as one of ours."""
    getattr(log, level if level in _LEVELS else "info")(event, **fields)


def read_plan(config: SmartSearchConfig, document: dict[str, object]) -> SweepPlan:
    """The plan that the child has answered with, ready for a loop that must not wait.

    Raises:
        SpicaError: it is none.
    """
    try:
        plan = decode_plan(config, document)
    except ValidationError as error:
        raise SpicaError(_GARBAGE) from error
    for branch in plan.branches:
        # Worked out here, once, what the loop asks for again and again.
        _ = branch.parameters, branch.distinct_selections
    return plan
