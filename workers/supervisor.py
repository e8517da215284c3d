"""The worker's one loop: slots that take requests, events about itself, orders to all workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NoReturn

import structlog

from schemas.control import RollCall
from spica_async.bus.counted import CountedWarnings
from spica_async.bus.port import Bus, Message
from spica_async.bus.topology import requests_queue
from spica_async.processes.memory import free_memory
from workers.handling import Handler, Shared
from workers.holdings import Holdings
from workers.memory import FootprintEstimator, MemoryGuard
from workers.messages import Malformation, MalformedMessageError, parse_order
from workers.port import ChildStartError, EvaluationSlot, SlotStatistics
from workers.presence import Presence
from workers.serving import SlotServer
from workers.settings import WorkerOptions
from workers.slot import Slot

log = structlog.get_logger(__name__)


class Supervisor:
    """Evaluates requests for one engine in a fixed number of slots.

    `run` does it all. It ends once `stopping` is set: nothing new is taken, what runs may go on for
    `options.drain_seconds`, and the rest is given back. To cancel `run` is to abort: children are
    killed at once and their requests given back.

    Args:
        bus: Where requests come from and results go to; the requests' queue must be declared.
        options: How the worker works.
        stopping: Ends `run` once it is set; by default an event of its own.
        make_slot: Makes the slot of an index; by default a `Slot` with children.
        memory_limit_bytes: Per slot; by default an equal share of what is available now.
        estimate_bytes: Estimates the memory of a load; by default the engine's own estimator.
        trace_pause_seconds: How long a slot takes nothing after a trace could not be had.

    Attributes:
        stopping: See above.
    """

    def __init__(
        self,
        bus: Bus,
        options: WorkerOptions,
        *,
        stopping: asyncio.Event | None = None,
        make_slot: Callable[[int], EvaluationSlot] | None = None,
        memory_limit_bytes: int | None = None,
        estimate_bytes: FootprintEstimator | None = None,
        trace_pause_seconds: float = 30.0,
    ) -> None:
        if options.slots < 1:
            raise ValueError(f"slots is {options.slots}, below 1")
        limit = memory_limit_bytes or free_memory() // options.slots
        self.stopping = stopping or asyncio.Event()
        self._drain_seconds = options.drain_seconds
        self._log = log.bind(worker=options.name)
        self._bus = bus
        self._warnings = CountedWarnings("worker", self._log)
        self._holdings = Holdings()
        self._presence = Presence(bus, options, self._holdings, self._warnings)
        self._shared = Shared(
            bus,
            requests_queue(options.engine_fingerprint).name,
            self._holdings,
            self._presence,
            self._warnings,
            self.stopping,
        )
        handler = Handler(
            self._shared,
            worker=options.name,
            guard=MemoryGuard(limit, estimate_bytes),
            hard_limit_seconds=options.hard_limit_seconds,
            traces=options.traces,
        )
        make_slot = make_slot or (lambda index: Slot(index, options.children, limit))
        self._servers = tuple(
            SlotServer(make_slot(index), self._shared, handler, trace_pause_seconds)
            for index in range(options.slots)
        )
        self._retired = 0
        self._has_run = False

    @property
    def statistics(self) -> tuple[SlotStatistics, ...]:
        """What each slot has done so far."""
        return tuple(server.slot.statistics for server in self._servers)

    @property
    def oddities(self) -> Mapping[str, int]:
        """How often what was out of order, by kind, e.g. `malformed_message/invalid_body`."""
        return self._warnings.counts

    async def run(self) -> None:
        """Consume and evaluate until `stopping` is set; may run once.

        Raises:
            QueueNotFoundError: the requests' queue is not declared.
            BusUnavailableError: the bus is away from the start.
            ExceptionGroup: holds the `ChildStartError` of the last slot that could not start its
                child (earlier ones retire), or the `AccessRefusedError` of a bus that lets nobody
                take requests any more. Requests have been given back.
        """
        if self._has_run:
            raise RuntimeError("a supervisor runs once")
        self._has_run = True
        try:
            await self._bus.queue_status(self._shared.queue)
            async with self._bus.listen() as orders:
                self._log.info("worker.started", slots=len(self._servers), queue=self._shared.queue)
                try:
                    await self._work(orders)
                finally:
                    await self._close_slots()
                    await self._presence.announce_leaving()
        finally:
            self._log.info("worker.ended", **self._warnings.counts)

    async def _work(self, orders: AsyncIterator[Message]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._presence.run())
                group.create_task(self._obey(orders))
                tasks = [group.create_task(self._serve(server)) for server in self._servers]
                await self.stopping.wait()
                await self._drain(tasks)
        except* _StoppedError:
            pass

    async def _obey(self, orders: AsyncIterator[Message]) -> None:
        async for message in orders:
            try:
                order = parse_order(message)
            except MalformedMessageError as error:
                is_unknown = error.kind is Malformation.UNKNOWN_TYPE
                self._warnings.add(
                    "unknown_order" if is_unknown else "malformed_order", error=str(error)
                )
            else:
                if isinstance(order, RollCall):
                    self._presence.heartbeat_now()
                else:
                    self._log.info("worker.sweep_cancelled", sweep=order.sweep_id)
                    self._holdings.cancel_sweep(order.sweep_id, order.run, order.grace_seconds)

    async def _serve(self, server: SlotServer) -> None:
        try:
            await server.run()
        except ChildStartError as error:
            self._retired += 1
            if self._retired == len(self._servers):
                raise
            # The others go on: one child more may be just what the machine has no room for.
            self._log.error("worker.slot_retired", slot=server.slot.index, error=str(error))
            self._presence.slot_retired(server.slot.index, f"a slot has retired: {error}")

    async def _drain(self, tasks: Sequence[asyncio.Task[None]]) -> NoReturn:
        self._log.info("worker.draining", seconds=self._drain_seconds)
        self._presence.draining()
        busy = [task for task, server in zip(tasks, self._servers, strict=True) if server.is_busy]
        idle = [task for task in tasks if task not in busy]
        for task in idle:
            task.cancel()
        if busy:
            await asyncio.wait(busy, timeout=self._drain_seconds)
        # These first: a second cancellation would disturb the end of a child's start.
        if idle:
            await asyncio.wait(idle)
        # The way to cancel what is left in a task group.
        raise _StoppedError

    async def _close_slots(self) -> None:
        for server in self._servers:
            server.slot.kill()
        for server in self._servers:
            await server.slot.close()


class _StoppedError(Exception):
    """Ends the task group once it is to stop."""
