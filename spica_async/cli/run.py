"""`spica-async run`: a coordinator and a worker in one process, over the embedded bus."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from schemas.results import SweepResult, SweepStatus
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Bus
from spica_async.bus.topology import declare, requests_queue
from spica_async.cli import EXIT_INTERRUPTED
from spica_async.cli.inputs import Inputs, read_inputs
from spica_async.cli.logs import log_to_file, log_warnings_to_stderr
from spica_async.cli.tables import plan_notes, print_view, result_view
from spica_async.display import Display, ProgressConsole, showing
from spica_async.engine.versions import engine_fingerprint, engine_versions
from spica_async.errors import InputError, SpicaError, first_cause
from spica_async.results import ResultsFolder, new_sweep_id
from spica_async.space.knobs import scales
from spica_async.sweep import Sweep
from workers.process import ChildStartError
from workers.settings import ENGINE_WARM_UP, ChildSettings, default_slots, slots_that_fit
from workers.supervisor import Supervisor

_EXIT_CODES: dict[SweepStatus, int] = {"nothing_feasible": 3, "interrupted": EXIT_INTERRUPTED}
_WARM_UP_WITH_PLANNER = "spica_async.engine.evaluation:warm_up_with_planner"


def run_sweep_command(path: Path, *, slots: int | None, output: Path, as_json: bool) -> int:
    """Run the sweep of one configuration file and return the exit code.

    Raises:
        SpicaError: if it could not be run; an `InputError` if that is the input's fault.
    """
    log_warnings_to_stderr()
    progress = ProgressConsole()
    inputs = read_inputs(path, lambda line: progress.print(line, markup=False, soft_wrap=True))
    count = _slots(slots, parallel_evals=inputs.config.sweep.parallel_evals)
    try:
        with showing(inputs.config.goal, progress) as display:
            result = asyncio.run(_run(inputs, slots=count, output=output, display=display))
    except asyncio.CancelledError:
        progress.print(f"interrupted; what was found, if anything, is in {output}", markup=False)
        return EXIT_INTERRUPTED
    except BaseExceptionGroup as group:
        raise first_cause(group) from group
    if as_json:
        sys.stdout.write(json.dumps(result.model_dump(mode="json"), indent=2) + "\n")
    else:
        print_view(result_view(result, inputs.config.goal))
    return _EXIT_CODES.get(result.status, 0)


def _slots(asked: int | None, *, parallel_evals: int) -> int:
    """Slots to run: one per core unless told otherwise, and none that could never be used.

    Raises:
        InputError: if so many were asked for that the memory is not enough for a replay in each.
    """
    fitting = slots_that_fit()
    if asked is not None and asked > fitting:
        raise InputError(f"--slots: the memory that is free now is enough for {fitting}")
    return min(asked or default_slots(), fitting, parallel_evals)


async def _run(inputs: Inputs, *, slots: int, output: Path, display: Display) -> SweepResult:
    time = asyncio.get_running_loop().time
    began = time()
    interrupts = _Interrupts()
    plan = await inputs.plan(display.planning)
    for note in plan_notes(plan):
        display.note(note)
    with ResultsFolder.create(output, new_sweep_id()) as folder:
        log_to_file(folder.logs / "coordinator.log")
        folder.write_config(inputs.config)
        folder.write_plan(plan)
        sweep = Sweep(
            sweep_id=folder.path.name,
            plan=plan,
            trace=inputs.trace,
            folder=folder,
            display=display,
            versions=engine_versions(),
            fingerprint=engine_fingerprint(),
            planning_seconds=time() - began,
        )
        display.planning(f"starting {slots} replay slots")
        planner = any(map(scales, plan.config.search_space.planner_scaling_policy))
        children = ChildSettings(
            warm_up=_WARM_UP_WITH_PLANNER if planner else ENGINE_WARM_UP,
            log_folder=folder.logs,
        )
        async with _embedded_worker(slots=slots, children=children) as bus:
            interrupts.has_something_to_keep = True
            return await sweep.run(bus, interrupts.stop)


@asynccontextmanager
async def _embedded_worker(*, slots: int, children: ChildSettings) -> AsyncIterator[Bus]:
    """A worker that lives as long as the context, and the bus that it listens to.

    Raises:
        SpicaError: if its children cannot be started.
    """
    bus = MemoryBus()
    fingerprint = engine_fingerprint()
    await declare(bus, requests_queue(fingerprint))
    supervisor = Supervisor(
        bus,
        engine_fingerprint=fingerprint,
        slots=slots,
        children=children,
    )
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(supervisor.run())
            try:
                yield bus
            finally:
                await supervisor.stop(drain_seconds=0)
    except BaseExceptionGroup as group:
        failed = group.subgroup(ChildStartError)
        if failed is None:
            raise
        cause, logs = first_cause(failed), children.log_folder
        raise SpicaError(f"no replay could be started: {cause}; see {logs}") from None


class _Interrupts:
    """What Ctrl-C, SIGTERM and the end of the terminal do.

    Until there is something to keep they cancel the task. Then the first one sets `stop`, so that
    what was found is written and shown, and only a second one cancels.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.has_something_to_keep = False
        self._task = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt)

    def _interrupt(self) -> None:
        if self._task is not None and (self.stop.is_set() or not self.has_something_to_keep):
            self._task.cancel()
        self.stop.set()
