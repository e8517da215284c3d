"""A worker in the coordinator's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from spica_async.bus.port import Bus, BusError
from spica_async.errors import SpicaError, first_cause
from workers.process import ChildStartError
from workers.program import WorkerOptions, run_worker


@asynccontextmanager
async def local_worker(bus: Bus, worker: WorkerOptions) -> AsyncIterator[None]:
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
