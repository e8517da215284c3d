"""A worker in the coordinator's own process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import structlog

from spica_async.bus.broker_options import BrokerOptions, connected
from spica_async.bus.port import Bus
from spica_async.errors import SpicaError, causes, first_cause
from workers.program import run_worker
from workers.settings import ChildSettings, WorkerOptions, default_name
from workers.traces import TraceCache

log = structlog.get_logger(__name__)


@asynccontextmanager
async def coordinators_worker(
    bus: Bus, broker: BrokerOptions | None, *, slots: int, children: ChildSettings
) -> AsyncIterator[None]:
    """The worker beside a coordinator; see `local_worker`.

    Args:
        bus: the coordinator's.
        broker: the broker behind it, to which the worker has a connection of its own; none for a
            bus in memory, which both share.
        slots: replays at a time.
        children: how its replay processes are started.
    """
    worker = WorkerOptions(
        name=default_name(),
        slots=slots,
        drain_seconds=0,
        hard_limit_seconds=broker.hard_limit_seconds if broker else None,
        # Over a broker it takes requests of other sweeps, too.
        traces=TraceCache() if broker else None,
        children=children,
    )
    async with AsyncExitStack() as stack:
        if broker is not None:
            queues = f"spica.worker.{worker.name}"
            own_bus = connected(broker.address, role="worker", private_queues=queues)
            bus = await stack.enter_async_context(own_bus)
        await stack.enter_async_context(local_worker(bus, worker))
        yield


@asynccontextmanager
async def local_worker(bus: Bus, worker: WorkerOptions) -> AsyncIterator[None]:
    """A worker in this process that lives as long as the context; its death cancels the body.

    The cause shows outside of this context alone. A context that is entered within it and left
    after it would see the cancellation only.

    Raises:
        SpicaError: its children cannot be started, or it has lost the bus.
    """
    stop = asyncio.Event()
    own: Exception | None = None
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_work(bus, worker, stop))
            try:
                yield
            except Exception as error:
                own = error
                raise
            finally:
                stop.set()
    except BaseExceptionGroup as error:
        if own is None:
            raise first_cause(error) from None
        # The body's own error goes first, e.g. where both of them have lost the broker.
        for other in causes(error):
            if other not in causes(own):
                log.warning("local_worker.failed", error=str(other))
        raise own from None


async def _work(bus: Bus, worker: WorkerOptions, stop: asyncio.Event) -> None:
    try:
        await run_worker(bus, worker, stop)
    except Exception as error:
        cause = first_cause(error)
        if not isinstance(cause, SpicaError):
            raise
        what = "the worker in this process failed"
        raise SpicaError(f"{what}: {cause}; see {worker.children.log_folder}") from error
