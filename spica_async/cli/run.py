"""`spica-async run`: a coordinator and a worker in one process, over the embedded bus."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rich.console import Console

from schemas.results import SweepResult, SweepStatus
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Bus
from spica_async.bus.topology import declare, requests_queue
from spica_async.cli import EXIT_INTERRUPTED
from spica_async.cli.inputs import Inputs, read_inputs
from spica_async.cli.logs import log_to_file, log_warnings_to_stderr
from spica_async.cli.tables import plan_notes, print_view, result_view
from spica_async.display import Display, make_display
from spica_async.engine.versions import engine_fingerprint, engine_versions
from spica_async.errors import SpicaError
from spica_async.results import ResultsFolder, new_sweep_id
from spica_async.space.knobs import scales
from spica_async.sweep import Sweep
from workers.process import ChildStartError
from workers.settings import ChildSettings, default_slots
from workers.supervisor import Supervisor

_EXIT_CODES: dict[SweepStatus, int] = {"nothing_feasible": 3, "interrupted": EXIT_INTERRUPTED}
_WARM_UP = "spica_async.engine.evaluation:warm_up"
_WARM_UP_WITH_PLANNER = "spica_async.engine.evaluation:warm_up_with_planner"


def run_sweep_command(path: Path, *, slots: int | None, output: Path, as_json: bool) -> int:
    """Run the sweep of one configuration file and return the exit code.

    Raises:
        SpicaError: if it could not be run; an `InputError` if that is the input's fault.
    """
    log_warnings_to_stderr()
    progress = Console(stderr=True)
    inputs = read_inputs(path, lambda line: progress.print(line, markup=False, soft_wrap=True))
    display = make_display(inputs.config.goal, progress)
    try:
        result = asyncio.run(_run(inputs, slots=slots, output=output, display=display))
    except asyncio.CancelledError:
        progress.print("interrupted before anything was searched")
        return EXIT_INTERRUPTED
    if as_json:
        sys.stdout.write(result.model_dump_json(indent=2) + "\n")
    else:
        print_view(result_view(result, inputs.config.goal))
    return _EXIT_CODES.get(result.status, 0)


async def _run(inputs: Inputs, *, slots: int | None, output: Path, display: Display) -> SweepResult:
    time = asyncio.get_running_loop().time
    began = time()
    with display:
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
            parallel = plan.config.sweep.parallel_evals
            count = min(slots or default_slots(), parallel)
            display.planning(f"starting {count} replay slots")
            planner = any(map(scales, plan.config.search_space.planner_scaling_policy))
            children = ChildSettings(
                warm_up=_WARM_UP_WITH_PLANNER if planner else _WARM_UP, log_folder=folder.logs
            )
            async with _embedded_worker(slots=count, children=children, logs=folder.logs) as bus:
                interrupts.has_something_to_keep = True
                return await sweep.run(bus, interrupts.stop)


@asynccontextmanager
async def _embedded_worker(
    *, slots: int, children: ChildSettings, logs: Path
) -> AsyncIterator[Bus]:
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
        raise SpicaError(f"no replay could be started: {_first(failed)}; see {logs}") from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error


class _Interrupts:
    """What Ctrl-C and SIGTERM do.

    Until there is something to keep they cancel the task. Then the first one sets `stop`, so that
    what was found is written and shown, and only a second one cancels.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.has_something_to_keep = False
        self._task = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt)

    def _interrupt(self) -> None:
        if self._task is not None and (self.stop.is_set() or not self.has_something_to_keep):
            self._task.cancel()
        self.stop.set()
