"""Sweeps that are run as commands run them, with plans and replays that take no time."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

from support.daemons import quick_inputs, small_config
from support.killing.driver import FINGERPRINT
from support.searching import FakeWorker, succeed_or_fail

from schemas.results import SweepResult
from spica_async.bus.port import Bus
from spica_async.bus.topology import declare, requests_queue
from spica_async.evaluate.cache.port import NoCache
from spica_async.journal.opening import JournalOptions, opened
from spica_async.journal.port import Journal
from spica_async.search.stopping import SweepStop
from spica_async.service.jobs import Job, NewJob, ResumedJob
from spica_async.service.run_sweep import Companion, RunContext, run_job
from spica_async.service.watch import SweepWatch


def new(options: JournalOptions, root: Path) -> NewJob:
    inputs = quick_inputs(small_config(), print)
    return NewJob(inputs, root=root, journal=options, use_cache=False)


def resumed(job: Job, options: JournalOptions, root: Path) -> ResumedJob:
    def journal() -> AbstractAsyncContextManager[Journal]:
        return opened(options)

    return ResumedJob(job.sweep_id, job.inputs, folder=root / job.sweep_id, journal=journal)


async def run(
    job: Job,
    bus: Bus,
    stop: SweepStop | None = None,
    *,
    after: int | None = None,
    gate: asyncio.Semaphore | None = None,
    companion: Companion = lambda _plan, _folder: nullcontext(),
) -> SweepResult:
    """Run a sweep, up to so many answers if a limit is given."""
    stop = stop or SweepStop(grace_seconds=5 if after else 0)
    await declare(bus, requests_queue(FINGERPRINT))
    worker = FakeWorker(bus, measure=succeed_or_fail, slots=2, gate=gate)
    watch = SweepWatch(job.sweep_id, lambda _: None)
    context = RunContext(
        bus=bus,
        broker=None,
        observer=watch,
        cache=NoCache(),
        use_cache=False,
        publishes_events=True,
    )

    async def stop_after() -> None:
        while after is not None and len(watch.records) < after:  # noqa: ASYNC110  # as a user watches
            await asyncio.sleep(0.005)
        if after is not None:
            stop.request()

    async with worker.running(), asyncio.TaskGroup() as group:
        group.create_task(stop_after())
        return await run_job(job, context, stop, companion=companion)
