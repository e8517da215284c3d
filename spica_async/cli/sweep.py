"""Runs the sweep of `run` and `resume`, over the embedded bus or a broker."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

from schemas.config import SmartSearchConfig
from schemas.results import SweepResult
from spica_async.bus.broker_options import BrokerOptions, connected
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Bus
from spica_async.cli.logs import log_warnings_to_stderr, logging_to_file
from spica_async.cli.options import DEFAULT_OUTPUT, SweepFlags
from spica_async.config.inputs import Inputs, inputs_of
from spica_async.errors import InputError, first_cause
from spica_async.evaluate.cache.opening import cache_place
from spica_async.evaluate.cache.opening import opened as opened_cache
from spica_async.exit_codes import EXIT_INTERRUPTED, sweep_exit_code
from spica_async.journal.opening import JournalOptions, config_of, opened
from spica_async.journal.port import SweepRow, SweepUnknownError
from spica_async.judge.sweep_result import is_useful
from spica_async.plan.types import SweepPlan
from spica_async.processes.stopping import Interrupts
from spica_async.report.folder_writer import FolderWriter
from spica_async.report.screen import Display, ProgressConsole, showing
from spica_async.report.tables import print_view, result_view
from spica_async.search.stopping import SweepStop
from spica_async.service.jobs import Job, NewJob, ResumedJob, check_root
from spica_async.service.local_worker import coordinators_worker
from spica_async.service.run_sweep import RunContext, run_job
from spica_async.space.knobs import scales
from workers.settings import (
    ENGINE_WARM_UP,
    ENGINE_WARM_UP_WITH_PLANNER,
    ChildSettings,
    checked_slots,
)


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How to run a sweep, apart from its configuration.

    Attributes:
        flags: the options as they were typed.
        broker: none: everything happens in this process and its children.
        journal: where the sweep is kept for when it is resumed.
        use_cache: whether what was measured before need not be measured again.
    """

    flags: SweepFlags
    broker: BrokerOptions | None
    journal: JournalOptions
    use_cache: bool

    @classmethod
    def read(cls, flags: SweepFlags, *, use_cache: bool) -> Self:
        """What was typed, with its defaults.

        Raises:
            InputError: something is wrong with an option.
        """
        broker = flags.broker()
        check_root(flags.output)
        journal = JournalOptions.read(flags.journal, flags.output)
        return cls(flags, broker, journal, use_cache)

    def inputs(self, config: SmartSearchConfig, progress: ProgressConsole) -> Inputs:
        """The checked inputs of a sweep, with the time limit that a broker needs.

        Raises:
            InputError: if something is wrong with the configuration or with its trace.
        """
        limited = config if self.broker is None else self.broker.limited(config)
        return inputs_of(limited, progress.print_line)

    def resume_command(self, sweep_id: str) -> str:
        """What to type to go on with a sweep of this run's; a journal's URL may hold a password."""
        command = f"spica-async resume {sweep_id}"
        if self.flags.output != DEFAULT_OUTPUT:
            command += f" --output {shlex.quote(str(self.flags.output))}"
        if self.journal.is_server:
            command += " --journal URL"
        if self.broker is not None:
            command += " --bus URL"
        return command


def run_new_sweep(config: SmartSearchConfig, options: RunOptions, *, as_json: bool) -> int:
    """Run the sweep of one configuration and return the exit code.

    Raises:
        SpicaError: if it could not be run; an `InputError` if that is the input's fault.
    """
    log_warnings_to_stderr()
    progress = ProgressConsole()
    inputs = options.inputs(config, progress)
    job = NewJob(
        inputs, root=options.flags.output, journal=options.journal, use_cache=options.use_cache
    )
    return _run_job(job, options, progress, as_json=as_json)


def resume_sweep(sweep_id: str, options: RunOptions, *, as_json: bool) -> int:
    """Go on with a sweep where it was left, and return the exit code.

    One that has ended is shown again.

    Raises:
        SpicaError: if it could not be run; an `InputError` if there is no such sweep.
    """
    log_warnings_to_stderr()
    progress = ProgressConsole()
    row = asyncio.run(_sweep_row(sweep_id, options.journal))
    inputs = options.inputs(config_of(row), progress)
    folder = _folder_of(row, options.flags.output)
    options = replace(options, use_cache=options.use_cache and row.use_cache)
    job = ResumedJob(sweep_id, inputs, folder=folder, journal=partial(opened, options.journal))
    return _run_job(job, options, progress, as_json=as_json)


def _run_job(job: Job, options: RunOptions, progress: ProgressConsole, *, as_json: bool) -> int:
    goal = job.inputs.config.goal
    for line in options.broker.notes if options.broker is not None else ():
        progress.print_line(line)
    slots = _slots(options, parallel_evals=job.inputs.config.sweep.parallel_evals)
    with ExitStack() as logs:
        try:
            with showing(goal, progress, fleet=options.broker is not None) as display:
                result = asyncio.run(_run(job, options, slots, display, logs))
        except asyncio.CancelledError:
            where = options.flags.output
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
    useful = any(is_useful(candidate.objectives, goal) for candidate in result.ranking)
    return sweep_exit_code(result.status, useful=useful)


def _folder_of(row: SweepRow, output: Path) -> Path:
    """Where the results of a sweep are, which may have been moved with the journal beside them."""
    here, there = output / row.sweep_id, Path(row.folder)
    return there if there.is_dir() and not here.is_dir() else here


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


def _slots(options: RunOptions, *, parallel_evals: int) -> int:
    """Slots to run here.

    Without a broker there is one per core unless --slots says otherwise, and none that could never
    be used.

    Raises:
        InputError: if so many were asked for that the memory is not enough for a replay in each.
    """
    if options.flags.slots is None and options.broker is not None:
        return 0
    return min(checked_slots(options.flags.slots), parallel_evals)


async def _run(
    job: Job, options: RunOptions, slots: int, display: Display, logs: ExitStack
) -> SweepResult:
    stop = SweepStop(grace_seconds=options.flags.grace())
    # The last one is the end of the terminal.
    Interrupts(stop).listen(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    async with AsyncExitStack() as stack:
        bus: Bus = MemoryBus()
        if (broker := options.broker) is not None:
            # Before the plan, so that what is wrong with the broker shows at once.
            display.planning(f"connecting to the broker: {broker.address}")
            queues = f"spica.results.{job.sweep_id}"
            connecting = connected(
                broker.address, role="coordinator", private_queues=queues, on_state=display.bus
            )
            bus = await stack.enter_async_context(connecting)

        def companion(plan: SweepPlan, folder: FolderWriter) -> AbstractAsyncContextManager[None]:
            logs.enter_context(logging_to_file(folder.logs / "coordinator.log"))
            if not slots:
                return nullcontext()
            display.planning(f"starting {slots} replay slots")
            planner = any(map(scales, plan.config.search_space.planner_scaling_policy))
            warm_up = ENGINE_WARM_UP_WITH_PLANNER if planner else ENGINE_WARM_UP
            children = ChildSettings(warm_up=warm_up, log_folder=folder.logs)
            return coordinators_worker(bus, broker, slots=slots, children=children)

        cache = await stack.enter_async_context(opened_cache(cache_place(options.journal.where)))
        context = RunContext(
            bus=bus,
            broker=broker,
            observer=display,
            cache=cache,
            use_cache=options.use_cache,
            publishes_events=broker is not None,
        )
        return await run_job(job, context, stop, companion=companion)
