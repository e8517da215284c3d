"""The worker's one loop: slots that take requests, what it tells of itself, what it is told."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NoReturn

import structlog

from schemas.control import RollCall
from spica_async.bus.counted import CountedWarnings
from spica_async.bus.port import Bus, Message
from spica_async.bus.topology import requests_queue
from spica_async.engine.versions import engine_versions
from workers.control import MalformedOrderError, UnknownOrderError, parse_order
from workers.handling import Handler
from workers.holdings import Holdings
from workers.memory import FootprintEstimator, MemoryGuard
from workers.port import ChildStartError, EvaluationSlot, SlotStatistics, TraceProvider
from workers.presence import Identity, Presence
from workers.serving import SlotServer
from workers.settings import ChildSettings, default_slots, memory_share
from workers.slot import Slot

DEFAULT_HEARTBEAT_SECONDS = 10.0

log = structlog.get_logger(__name__)


class Supervisor:
    """Evaluates requests for one engine in a fixed number of slots.

    `run` does it all and ends after `stop`; to cancel `run` is to abort: children are killed at
    once and their requests given back.

    Args:
        bus: where requests come from and results go to; the requests' queue must be declared.
        engine_fingerprint: of the engine that the children have; names the queue.
        slots: how many evaluations may run at once; by default one per core.
        name: stands in results and events; by default host and process id.
        children: how children are started and ended.
        make_slot: makes the slot of an index; by default a `Slot` with children.
        memory_limit_bytes: per slot; by default an equal share of what is available now.
        estimate_bytes: by default the engine's own estimator.
        hard_limit_seconds: bounds each evaluation, whatever its request allows; none: no bound.
        traces: where children find traces; none: where the request says.
        trace_pause_seconds: how long a slot takes nothing after a trace could not be had.
        heartbeat_seconds: between two heartbeats.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        engine_fingerprint: str,
        slots: int | None = None,
        name: str | None = None,
        children: ChildSettings | None = None,
        make_slot: Callable[[int], EvaluationSlot] | None = None,
        memory_limit_bytes: int | None = None,
        estimate_bytes: FootprintEstimator | None = None,
        hard_limit_seconds: float | None = None,
        traces: TraceProvider | None = None,
        trace_pause_seconds: float = 30.0,
        heartbeat_seconds: float = DEFAULT_HEARTBEAT_SECONDS,
    ) -> None:
        count = default_slots() if slots is None else slots
        if count < 1:
            raise ValueError(f"slots is {count}, below 1")
        limit = memory_share(count) if memory_limit_bytes is None else memory_limit_bytes
        settings = children or ChildSettings()
        identity = Identity(
            name or default_name(),
            socket.gethostname(),
            os.getpid(),
            engine_fingerprint,
            engine_versions(),
        )
        self.name = identity.name
        self._log = log.bind(worker=self.name)
        self._bus = bus
        self._queue = requests_queue(engine_fingerprint).name
        self._warnings = CountedWarnings("worker", self._log)
        self._holdings = Holdings()
        self._presence = Presence(
            bus,
            identity,
            slots=count,
            held=lambda: self._holdings.evaluation_ids,
            interval_seconds=heartbeat_seconds,
            warnings=self._warnings,
        )
        self._stopping = asyncio.Event()
        handler = Handler(
            bus,
            identity=identity,
            guard=MemoryGuard(limit, estimate_bytes),
            hard_limit_seconds=hard_limit_seconds,
            traces=traces,
            holdings=self._holdings,
            presence=self._presence,
            warnings=self._warnings,
        )
        make_slot = make_slot or (lambda index: Slot(index, settings, limit))
        self._servers = tuple(
            SlotServer(
                make_slot(index),
                bus,
                queue=self._queue,
                handler=handler,
                pause_seconds=trace_pause_seconds,
                stopping=self._stopping,
                presence=self._presence,
                warnings=self._warnings,
            )
            for index in range(count)
        )
        self._retired = 0
        self._has_run = False
        self._drain_seconds = 0.0
        self._ended = asyncio.Event()

    @property
    def statistics(self) -> tuple[SlotStatistics, ...]:
        """What each slot has done so far."""
        return tuple(server.slot.statistics for server in self._servers)

    @property
    def oddities(self) -> Mapping[str, int]:
        """How often what was out of order, by kind, e.g. `malformed_message/invalid_body`."""
        return self._warnings.counts

    async def run(self) -> None:
        """Consume and evaluate until `stop` is called; may run once.

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
            await self._bus.queue_status(self._queue)
            async with self._bus.listen() as orders:
                self._log.info("worker.started", slots=len(self._servers), queue=self._queue)
                try:
                    await self._work(orders)
                finally:
                    await self._close_slots()
                    await self._presence.say_goodbye()
        finally:
            self._ended.set()
            self._log.info("worker.ended", **self._warnings.counts)

    async def stop(self, drain_seconds: float) -> None:
        """Take nothing new, let evaluations go on for so long, give back the rest; then end.

        Returns when `run` has cleaned up.
        """
        self._drain_seconds = drain_seconds
        self._stopping.set()
        await self._ended.wait()

    async def _work(self, orders: AsyncIterator[Message]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._presence.run())
                group.create_task(self._obey(orders))
                tasks = [group.create_task(self._serve(server)) for server in self._servers]
                await self._stopping.wait()
                await self._drain(tasks)
        except* _StoppedError:
            pass

    async def _obey(self, orders: AsyncIterator[Message]) -> None:
        async for message in orders:
            try:
                order = parse_order(message)
            except UnknownOrderError as error:
                self._warnings.add("unknown_order", error=str(error))
            except MalformedOrderError as error:
                self._warnings.add("malformed_order", error=str(error))
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
    """Ends the task group after `stop`."""


def default_name() -> str:
    """Host and process id, which no other worker has."""
    return f"{socket.gethostname()}-{os.getpid()}"
