"""Has a plan made in a process of its own, so that the engine is never loaded here."""

from __future__ import annotations

import asyncio
import pickle
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from typing import Any

import structlog

from schemas.config import SmartSearchConfig
from schemas.messages import TraceLoad
from spica_async.child_end import end_child
from spica_async.childproc import HEADER_BYTES, child_environment, frame, payload_length
from spica_async.engine.own_files import own_settings
from spica_async.errors import InputError, SpicaError, keep_traceback
from spica_async.plan.request import PlanRequest
from spica_async.plan.types import Progress, SweepPlan

log = structlog.get_logger(__name__)


async def make_plan(
    config: SmartSearchConfig, trace: TraceLoad | None, progress: Progress
) -> SweepPlan:
    """Settle what a sweep searches.

    Raises:
        InputError: if the configuration cannot be searched.
        SpicaError: if the engine failed while it was asked; the message names the file in which
            its traceback is kept.
    """
    with tempfile.TemporaryFile() as stderr:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "spica_async.plan.child"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=stderr,
            env=child_environment(**own_settings()),
            start_new_session=True,
        )
        try:
            assert process.stdin is not None  # noqa: S101  # asked for above
            # Left open: its end is how the child learns of ours.
            process.stdin.write(frame(pickle.dumps(PlanRequest(config, trace))))
            return await _plan_of(process, progress)
        except asyncio.IncompleteReadError:
            code = await process.wait()
            stderr.seek(0)
            said = keep_traceback(stderr.read().decode(errors="replace") or "it said nothing")
            raise SpicaError(f"the planning process ended with exit code {code}: {said}") from None
        finally:
            await end_child(process)


async def _plan_of(process: Process, progress: Progress) -> SweepPlan:
    while True:
        kind, value = await _read_answer(process)
        match kind:
            case "progress":
                progress(value)
            case "log":
                _log(**value)
            case "plan":
                plan: SweepPlan = value
                return plan
            case "input_error":
                raise InputError(value)
            case _:
                raise SpicaError(
                    f"the engine failed while the sweep was planned: {keep_traceback(value)}"
                )


def _log(*, event: str, level: str, **fields: str) -> None:
    """Log a line of the child's as one of ours."""
    getattr(log, level)(event, **fields)


async def _read_answer(process: Process) -> tuple[str, Any]:
    assert process.stdout is not None  # noqa: S101  # asked for by make_plan
    length = payload_length(await process.stdout.readexactly(HEADER_BYTES))
    # The child is our own program, started by us.
    kind, value = pickle.loads(await process.stdout.readexactly(length))  # noqa: S301
    return kind, value
