"""Has a plan made in a process of its own, so that the engine is never loaded here."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
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
from spica_async.processes.child import HEADER_BYTES, child_environment, frame, payload_length
from spica_async.processes.child_end import end_child
from spica_async.processes.memory import child_memory_limit, mebibytes, outgrown
from spica_async.processes.threads import computed

_GARBAGE: Final = "the planning process wrote something that is no answer"
_LEVELS: Final = frozenset({"debug", "info", "warning", "error", "critical"})
_LARGE: Final = 64 * 2**10

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
    with tempfile.TemporaryFile() as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "spica_async.plan.child"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=stderr,
            env=child_environment(**own_settings()),
            start_new_session=True,
        )
        watching = asyncio.create_task(outgrown(process.pid, memory_bytes))
        reading = asyncio.create_task(_plan_of(process, config, steps))
        # Nobody may wait for it any more when it fails.
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            assert process.stdin is not None  # noqa: S101  # asked for above
            # Left open: its end is how the child learns of ours.
            process.stdin.write(frame(encode_request(PlanRequest(config, trace))))
            await asyncio.wait(
                {reading, watching}, timeout=limits.seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if reading.done():
                return reading.result()
            took = f"more than {limits.seconds:g} s"
            if watching.done():
                took = (
                    f"{mebibytes(watching.result())} of memory, {mebibytes(memory_bytes)} allowed"
                )
            raise InputError(f"the sweep is too large to be planned: it took {took}{steps.last}")
        except asyncio.IncompleteReadError:
            code = await process.wait()
            stderr.seek(0)
            said = keep_traceback(stderr.read().decode(errors="replace") or "it said nothing")
            raise SpicaError(f"the planning process ended with exit code {code}: {said}") from None
        finally:
            reading.cancel()
            watching.cancel()
            await end_child(process)


class _Steps:
    """Passes on what is being done, and keeps the last of it."""

    def __init__(self, progress: Progress) -> None:
        self.last = ""
        self._progress = progress

    def __call__(self, line: str) -> None:
        self.last = f", at: {line}"
        self._progress(line)


async def _plan_of(process: Process, config: SmartSearchConfig, progress: Progress) -> SweepPlan:
    while True:
        match await _read_answer(process):
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


async def _read_answer(process: Process) -> object:
    assert process.stdout is not None  # noqa: S101  # asked for by make_plan
    length = payload_length(await process.stdout.readexactly(HEADER_BYTES))
    if length > MAX_ANSWER_BYTES:
        raise SpicaError(_GARBAGE)
    payload = await process.stdout.readexactly(length)
    try:
        # Most are a line of progress.
        parsed: object = (
            await computed(json.loads, payload) if length > _LARGE else json.loads(payload)
        )
    except (ValueError, RecursionError):
        raise SpicaError(_GARBAGE) from None
    return parsed
