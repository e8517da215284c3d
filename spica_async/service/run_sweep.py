"""Runs one sweep from its configuration to its result, for a command or a daemon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass

from schemas.accuracy import BackendAccuracy
from schemas.results import SweepResult
from spica_async.accuracy.cells import accuracy_of
from spica_async.accuracy.kept import known_cells
from spica_async.bus.broker_options import BrokerOptions
from spica_async.bus.port import Bus
from spica_async.engine.silicon import deployed_version, timed_version
from spica_async.engine.versions import engine_fingerprint, engine_versions
from spica_async.errors import TimeUpError
from spica_async.evaluate.cache.port import ResultCache
from spica_async.evaluate.reuse import Reuse
from spica_async.evaluate.turns import Share
from spica_async.journal.opening import load_library
from spica_async.plan.describe import plan_notes
from spica_async.plan.types import Progress, SweepPlan
from spica_async.processes.threads import with_files
from spica_async.report.folder_writer import FolderWriter
from spica_async.search.observer import Observer, Observers
from spica_async.search.past_runs import MEMORY_BUS, PastRuns
from spica_async.search.stopping import SweepStop
from spica_async.search.sweep import Sweep
from spica_async.search.sweep_run import SweepRun
from spica_async.service.jobs import Job
from spica_async.service.outbox import Outbox, outbox_of
from spica_async.service.trace_offers import offered
from spica_async.traces.serve import TraceServer

Companion = Callable[[SweepPlan, FolderWriter], AbstractAsyncContextManager[None]]
"""What is there while a sweep is searched, e.g. a worker."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a sweep is run with.

    Attributes:
        bus: the bus that workers listen to.
        broker: behind the bus; none for one in memory.
        observer: called at each step, the planning included.
        cache: the results that were measured before, by this sweep or any other.
        use_cache: whether the cache answers requests; it is given results in any case.
        share: the sweep's share of the workers' slots; none: all slots are its own.
        traces: serves the sweep's trace to workers; none: a server of its own does.
        publishes_events: whether the events of the sweep are published on the bus meanwhile.
    """

    bus: Bus
    broker: BrokerOptions | None
    observer: Observer
    cache: ResultCache
    use_cache: bool
    share: Share | None = None
    traces: TraceServer | None = None
    publishes_events: bool = False


async def run_job(
    job: Job,
    context: RunContext,
    stop: SweepStop,
    *,
    companion: Companion = lambda _plan, _folder: nullcontext(),
) -> SweepResult:
    """Plan a sweep and search until it ends or a stop is requested.

    Args:
        job: the sweep.
        context: what it is run with.
        stop: ends it.
        companion: open while the sweep is searched; what goes wrong with it ends the sweep.

    Raises:
        TimeUpError: its `max_seconds` were up before it was planned.
        SpicaError: it could not be run; an `InputError` if that is the input's fault.
    """
    time = asyncio.get_running_loop().time
    began = time()
    async with AsyncExitStack() as stack:
        # Before the plan, so that what is wrong with the journal shows at once.
        past = await job.before_planning(stack)

        def spent() -> float:
            return past.elapsed_seconds + time() - began

        sweep = await _planned(job, past, context, stack, spent)
        folder, log = await job.after_planning(stack)
        outbox: Outbox | None = None
        if context.publishes_events:
            outbox = await stack.enter_async_context(
                outbox_of(sweep.sweep_id, log.events, log.journal, context.bus)
            )
        folder.write_plan(sweep.plan)
        # What has ended is written, but not shown once more.
        viewers = [context.observer] if past.ended is None else []
        reuse = Reuse(
            context.cache,
            sweep.fingerprint,
            answers=context.use_cache,
            note=context.observer.note,
        )
        run = SweepRun(
            sweep,
            log,
            Observers(folder, log.events, *viewers),
            stop=stop,
            reuse=reuse,
            share=context.share,
            owner=log.lease.owner,
            bus_name=str(context.broker.address) if context.broker is not None else MEMORY_BUS,
        )
        if past.ended is not None:
            return await run.show_end(past.ended)
        if past.planned is None:
            await log.record(sweep.planned_fact(at=spent()), lambda: None)
        return await run.run(
            context.bus,
            companion=_beside(outbox, companion(sweep.plan, folder)),
            spent_seconds=spent(),
        )


async def _planned(
    job: Job,
    past: PastRuns,
    context: RunContext,
    stack: AsyncExitStack,
    spent: Callable[[], float],
) -> Sweep:
    """The sweep of a job, as it is planned now and was planned before.

    Args:
        job: the sweep to be run.
        past: what its earlier runs have come to.
        context: what it is run with.
        stack: keeps open what offers its trace to workers.
        spent: the seconds that it has run for.

    Raises:
        TimeUpError: its `max_seconds` were up before it was planned.
        SpicaError: it cannot be planned, or is not what it was when it was begun.
    """
    trace = job.inputs.trace
    # Performance data of the user's own may take a while to read.
    fingerprint = await with_files(engine_fingerprint)
    if context.broker is not None:
        trace = await stack.enter_async_context(offered(trace, context.broker, context.traces))
    before = spent()
    plan = await _plan(job, past, context.observer.planning, before)
    planned_before = past.planned.planning_seconds if past.planned is not None else 0.0
    sweep = Sweep(
        sweep_id=job.sweep_id,
        plan=plan,
        trace=trace,
        folder=job.folder,
        versions=engine_versions(),
        fingerprint=fingerprint,
        planning_seconds=planned_before + spent() - before,
        past=past,
        accuracy=tuple(await with_files(_accuracy, plan, fingerprint)),
    )
    for note in plan_notes(plan):
        context.observer.note(note)
    if (doubt := sweep.check_unchanged()) is not None:
        context.observer.note(doubt)
    return sweep


def _accuracy(plan: SweepPlan, fingerprint: str) -> list[BackendAccuracy]:
    """What is known of how far the sweep's replays are from silicon."""
    space = plan.config.search_space
    backends = dict.fromkeys(
        str(backend) for branch in plan.branches for backend in branch.backend.entries
    )
    sku = space.hardware_sku
    return [
        known.model_copy(
            update={
                "timed_version": timed_version(sku, known.backend),
                "deployed_version": deployed_version(known.backend),
            }
        )
        for known in accuracy_of(known_cells(fingerprint), space.model_name, sku, backends)
    ]


@asynccontextmanager
async def _beside(
    outbox: Outbox | None, companion: AbstractAsyncContextManager[None]
) -> AsyncIterator[None]:
    async with outbox.running() if outbox is not None else nullcontext(), companion:
        yield


async def _plan(job: Job, past: PastRuns, progress: Progress, spent_seconds: float) -> SweepPlan:
    """Plan a sweep within the time that it has.

    Args:
        job: the sweep.
        past: what its earlier runs have come to.
        progress: called with a line for each step of the planning.
        spent_seconds: seconds that the sweep has run for by now.

    Raises:
        TimeUpError: its time was up.
        SpicaError: it cannot be planned.
    """
    limit = job.inputs.config.sweep.max_seconds
    # What was planned once is planned again, though only for its result to be written.
    is_first = past.planned is None
    left = max(0.0, limit - spent_seconds) if limit is not None and is_first else None
    try:
        async with asyncio.timeout(left) as until:
            # A group waits for both, however this ends; `gather` would leave the planning process.
            async with asyncio.TaskGroup() as group:
                planning = group.create_task(job.inputs.plan(progress))
                group.create_task(load_library())
    except TimeoutError:
        if not until.expired():
            raise
        raise TimeUpError(
            f"sweep.max_seconds: {limit:g} s were up while the sweep was still being planned"
        ) from None
    return planning.result()
