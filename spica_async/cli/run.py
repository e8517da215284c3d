"""`spica-async run`: one sweep, over the embedded bus or a broker."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from schemas.goal import OptimizationGoal
from schemas.results import SweepResult, SweepStatus
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Bus, BusError
from spica_async.bus.topology import requests_queue
from spica_async.cli import EXIT_INTERRUPTED
from spica_async.cli.broker import BrokerOptions, check_consumer_timeout, connected, offered
from spica_async.cli.inputs import Inputs, inputs_of, read_inputs
from spica_async.cli.job import Job, NewJob, ResumedJob, check_same, planned_fact
from spica_async.cli.journal import JournalOptions, config_of, opened
from spica_async.cli.logs import log_to_file, log_warnings_to_stderr
from spica_async.cli.options import DEFAULT_GRACE_SECONDS, DEFAULT_OUTPUT
from spica_async.cli.tables import plan_notes, print_view, result_view
from spica_async.display import Display, ProgressConsole, showing
from spica_async.engine.versions import engine_fingerprint, engine_versions
from spica_async.errors import InputError, SpicaError, first_cause
from spica_async.interrupts import Interrupts
from spica_async.journal import SweepRow, SweepUnknownError
from spica_async.journal.past import MEMORY_BUS
from spica_async.outcome import is_useful
from spica_async.plan.types import SweepPlan
from spica_async.results import ResultsFolder
from spica_async.space.knobs import scales
from spica_async.sweep import Sweep
from workers.process import ChildStartError
from workers.program import WorkerOptions, checked_slots, run_worker
from workers.settings import ENGINE_WARM_UP, ChildSettings
from workers.supervisor import default_name
from workers.traces import TraceCache

_EXIT_CODES: dict[SweepStatus, int] = {"nothing_feasible": 3, "interrupted": EXIT_INTERRUPTED}
_WARM_UP_WITH_PLANNER = "spica_async.engine.evaluation:warm_up_with_planner"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a sweep, apart from its configuration.

    Attributes:
        slots: replays at a time in this process; none: as many as suit the machine without a
            broker, and with one none at all.
        output: the folder for the sweep's own folder.
        grace_seconds: how long an interrupted sweep waits for what runs.
        broker: none: everything happens in this process and its children.
        journal: where the sweep is kept for when it is resumed.
    """

    slots: int | None
    output: Path
    grace_seconds: float
    broker: BrokerOptions | None
    journal: JournalOptions

    def resume_command(self, sweep_id: str) -> str:
        """What to type to go on with a sweep of this run's; a journal's URL may hold a password."""
        told = "" if self.output == DEFAULT_OUTPUT else f" --output {shlex.quote(str(self.output))}"
        if self.journal.is_server:
            told += " --journal URL"
        if self.broker is not None:
            told += " --bus URL"
        return f"spica-async resume {sweep_id}{told}"


def read_run_options(
    *,
    slots: int | None,
    output: Path,
    grace_seconds: float | None,
    broker: BrokerOptions | None,
    journal: str | None,
) -> RunOptions:
    """What a command was told, with what goes without saying.

    Raises:
        InputError: something is wrong with an option.
    """
    if grace_seconds is None:
        grace_seconds = DEFAULT_GRACE_SECONDS if broker else 0.0
    kept = JournalOptions.read(journal, output)
    return RunOptions(slots, output, grace_seconds, broker, kept)


def run_sweep_command(path: Path, options: RunOptions, *, as_json: bool) -> int:
    """Run the sweep of one configuration file and return the exit code.

    Raises:
        SpicaError: if it could not be run; an `InputError` if that is the input's fault.
    """
    log_warnings_to_stderr()
    progress = ProgressConsole()
    inputs = _limited(read_inputs(path, _noting(progress)), options)
    job = NewJob(inputs, root=options.output, journal=options.journal)
    return _run_job(job, options, progress, as_json=as_json)


def resume_sweep_command(sweep_id: str, options: RunOptions, *, as_json: bool) -> int:
    """Go on with a sweep where it was left, and return the exit code.

    One that has ended is shown again.

    Raises:
        SpicaError: if it could not be run; an `InputError` if there is no such sweep.
    """
    log_warnings_to_stderr()
    progress = ProgressConsole()
    row = asyncio.run(_sweep_row(sweep_id, options.journal))
    inputs = _limited(inputs_of(config_of(row), _noting(progress)), options)
    job = ResumedJob(sweep_id, inputs, folder=Path(row.folder), journal=options.journal)
    return _run_job(job, options, progress, as_json=as_json)


def _run_job(job: Job, options: RunOptions, progress: ProgressConsole, *, as_json: bool) -> int:
    goal = job.inputs.config.goal
    slots = _slots(options, parallel_evals=job.inputs.config.sweep.parallel_evals)
    try:
        with showing(goal, progress, fleet=options.broker is not None) as display:
            result = asyncio.run(_run(job, options, slots, display))
    except asyncio.CancelledError:
        where = options.output
        progress.print(f"interrupted; what was found, if anything, is in {where}", markup=False)
        return EXIT_INTERRUPTED
    except BaseExceptionGroup as group:
        raise first_cause(group) from group
    if as_json:
        sys.stdout.write(json.dumps(result.model_dump(mode="json"), indent=2) + "\n")
    else:
        print_view(result_view(result, goal))
    if result.status == "interrupted":
        progress.print(f"go on with it: {options.resume_command(job.sweep_id)}", markup=False)
    return exit_code(result, goal)


def _limited(inputs: Inputs, options: RunOptions) -> Inputs:
    if options.broker is None:
        return inputs
    return replace(inputs, config=options.broker.limited(inputs.config))


def _noting(progress: ProgressConsole) -> Callable[[str], None]:
    return lambda line: progress.print(line, markup=False, soft_wrap=True)


async def _sweep_row(sweep_id: str, options: JournalOptions) -> SweepRow:
    """What the journal has of a sweep.

    Raises:
        InputError: there is no such sweep, or no such journal.
    """
    if not options.exists:
        raise InputError(f"there is no journal {options.name}: see --output and --journal")
    try:
        async with opened(options) as journal:
            return await journal.sweep(sweep_id)
    except SweepUnknownError as error:
        raise InputError(f"{error}; see --output and --journal") from error


def exit_code(result: SweepResult, goal: OptimizationGoal) -> int:
    """What a shell is told of a sweep's end: 0 where it found deployments that serve the goal."""
    useful = any(is_useful(candidate.objectives, goal) for candidate in result.ranking)
    if result.status == "time_limit" and not useful:
        return _EXIT_CODES["nothing_feasible"]
    return _EXIT_CODES.get(result.status, 0)


def _slots(options: RunOptions, *, parallel_evals: int) -> int:
    """Slots to run here.

    Without a broker there is one per core unless told otherwise, and none that could never be
    used.

    Raises:
        InputError: if so many were asked for that the memory is not enough for a replay in each.
    """
    if options.slots is None and options.broker is not None:
        return 0
    return min(checked_slots(options.slots), parallel_evals)


async def _run(job: Job, options: RunOptions, slots: int, display: Display) -> SweepResult:
    time = asyncio.get_running_loop().time
    began = time()
    interrupts = Interrupts()
    # The last one is the end of the terminal.
    interrupts.listen(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    sweep_id, broker = job.sweep_id, options.broker
    async with AsyncExitStack() as stack:
        # Before the plan, so that what is wrong with the journal or the broker shows at once.
        past = await job.before_planning(stack)
        bus = await stack.enter_async_context(_coordinators_bus(broker, sweep_id, display))
        trace = job.inputs.trace
        fingerprint = engine_fingerprint()
        if broker is not None:
            await check_consumer_timeout(bus, requests_queue(fingerprint).name, broker)
            trace = await stack.enter_async_context(offered(trace, broker))
        before_planning = time()
        plan, _ = await asyncio.gather(job.inputs.plan(display.planning), job.while_planning())
        planning_seconds = time() - before_planning
        for note in plan_notes(plan):
            display.note(note)
        sweep_opened = await job.after_planning(stack)
        folder = sweep_opened.folder
        log_to_file(folder.logs / "coordinator.log")
        folder.write_plan(plan)
        versions = engine_versions()
        trace_sha256 = trace.sha256 if trace is not None else None
        if past.planned is not None:
            check_same(past.planned, plan, trace_sha256=trace_sha256, versions=versions)
            planning_seconds += past.planned.planning_seconds
        else:
            planned = planned_fact(
                plan,
                trace_sha256=trace_sha256,
                versions=versions,
                planning_seconds=planning_seconds,
                at=past.elapsed_seconds + time() - began,
            )
            await sweep_opened.log.record(planned, lambda: None)
        sweep = Sweep(
            sweep_id=sweep_id,
            plan=plan,
            trace=trace,
            folder=folder,
            display=display,
            versions=versions,
            fingerprint=fingerprint,
            planning_seconds=planning_seconds,
            spent_seconds=0.0,
            log=sweep_opened.log,
            grace_seconds=options.grace_seconds,
            past=past,
            owner=sweep_opened.owner,
            bus_name=str(broker.address) if broker is not None else MEMORY_BUS,
        )
        if past.ended is not None:
            return sweep.ended(past.ended)
        if slots:
            display.planning(f"starting {slots} replay slots")
            worker = _worker(options, slots, plan, folder)
            workers_bus = await stack.enter_async_context(_workers_bus(broker, bus))
            await stack.enter_async_context(_local_worker(workers_bus, worker))
        interrupts.can_stop = True
        spent = past.elapsed_seconds + time() - began
        return await replace(sweep, spent_seconds=spent).run(bus, interrupts.stop)


def _worker(
    options: RunOptions, slots: int, plan: SweepPlan, folder: ResultsFolder
) -> WorkerOptions:
    planner = any(map(scales, plan.config.search_space.planner_scaling_policy))
    return WorkerOptions(
        name=default_name(),
        slots=slots,
        drain_seconds=0,
        hard_limit_seconds=options.broker.hard_limit_seconds if options.broker else None,
        # Over a broker it takes requests of other sweeps, too.
        traces=TraceCache.open() if options.broker else None,
        children=ChildSettings(
            warm_up=_WARM_UP_WITH_PLANNER if planner else ENGINE_WARM_UP,
            log_folder=folder.logs,
        ),
    )


@asynccontextmanager
async def _coordinators_bus(
    broker: BrokerOptions | None, sweep_id: str, display: Display
) -> AsyncIterator[Bus]:
    if broker is None:
        yield MemoryBus()
        return
    display.planning(f"connecting to the broker: {broker.address}")
    async with connected(
        broker.address,
        role="coordinator",
        private_queues=f"spica.results.{sweep_id}",
        on_state=display.bus,
    ) as bus:
        yield bus


@asynccontextmanager
async def _workers_bus(broker: BrokerOptions | None, coordinators: Bus) -> AsyncIterator[Bus]:
    if broker is None:
        yield coordinators
        return
    async with connected(
        broker.address, role="worker", private_queues=f"spica.worker.{default_name()}"
    ) as bus:
        yield bus


@asynccontextmanager
async def _local_worker(bus: Bus, worker: WorkerOptions) -> AsyncIterator[None]:
    """A worker in this process that lives as long as the context.

    Raises:
        SpicaError: if its children cannot be started, or it has lost the bus.
    """
    stop = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(run_worker(bus, worker, stop))
            try:
                yield
            finally:
                stop.set()
    except BaseExceptionGroup as error:
        if error.split((SpicaError, ChildStartError, BusError))[1] is not None:
            raise
        told = error.subgroup(SpicaError)
        if told is not None:
            # The sweep's own word, where both of them have lost the broker.
            raise first_cause(told) from None
        cause = first_cause(error)
        started = not isinstance(cause, ChildStartError)
        what = "the worker in this process failed" if started else "no replay could be started"
        raise SpicaError(f"{what}: {cause}; see {worker.children.log_folder}") from None
