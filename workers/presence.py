"""Events about a worker: it joins, beats, has started an evaluation, leaves.

They are for those who watch. They are published beside the work, so that a bus which is slow or
gone holds up no evaluation, and one that cannot be published is counted and left out.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from dataclasses import dataclass
from typing import Any

from schemas.envelope import Envelope
from schemas.events import (
    EvaluationStart,
    EvaluationStarted,
    WorkerHeartbeat,
    WorkerJoined,
    WorkerLeft,
    WorkerState,
    WorkerStatus,
)
from schemas.messages import EvaluationRequest
from spica_async.bus.counted import CountedWarnings
from spica_async.bus.port import Bus, BusError, Message
from spica_async.bus.topology import (
    EVALUATION_STARTED_TOPIC,
    WORKER_HEARTBEAT_TOPIC,
    WORKER_JOINED_TOPIC,
    WORKER_LEFT_TOPIC,
)
from spica_async.engine.versions import engine_versions
from workers.holdings import Holdings
from workers.settings import WorkerOptions

_MAX_PENDING_STARTS = 2048
_START_DELAY_SECONDS = 0.25
"""An evaluation that ends before has no event of its start: one costs as much as a result."""
_GOODBYE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Start:
    """An evaluation that got a slot, to be published when the loop's clock shows `due`."""

    request: EvaluationRequest
    slot: int
    due: float


class Presence:
    """Knows how the worker is, and publishes it.

    Args:
        bus: Where events go.
        options: Of the worker.
        holdings: The evaluations that it holds.
        warnings: Counts the events that could not be published.
    """

    def __init__(
        self, bus: Bus, options: WorkerOptions, holdings: Holdings, warnings: CountedWarnings
    ) -> None:
        self._bus = bus
        self._options = options
        self._holdings = holdings
        self._warnings = warnings
        self._source = worker_source(options.name)
        self._constant = {
            "worker": options.name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "engine_fingerprint": options.engine_fingerprint,
            "versions": engine_versions(),
            "interval_seconds": options.heartbeat_seconds,
        }
        self._state: WorkerState = "starting"
        self._retired: dict[int, str] = {}
        self._troubles: dict[int, str] = {}
        self._starts: deque[_Start] = deque(maxlen=_MAX_PENDING_STARTS)
        self._heartbeat_wanted = True
        self._wake = asyncio.Event()

    @property
    def status(self) -> WorkerStatus:
        """The worker as it is right now."""
        troubles = [*self._retired.values(), *self._troubles.values()]
        return WorkerStatus(
            **self._constant,
            state=self._state,
            slots=self._options.slots - len(self._retired),
            evaluations=self._holdings.evaluation_ids,
            # Slots of one worker have the same trouble as a rule.
            trouble="; ".join(dict.fromkeys(troubles)) or None,
        )

    async def run(self) -> None:
        """Publish everything until cancelled."""
        time = asyncio.get_running_loop().time
        next_heartbeat = time()
        await self._publish_status(WORKER_JOINED_TOPIC, WorkerJoined)
        while True:
            if self._heartbeat_wanted or time() >= next_heartbeat:
                self._heartbeat_wanted = False
                # One that was asked for stands beside these: after a roll call a whole fleet would
                # else beat at the same time for good.
                if time() >= next_heartbeat:
                    next_heartbeat = time() + self._options.heartbeat_seconds
                await self._publish_status(WORKER_HEARTBEAT_TOPIC, WorkerHeartbeat)
            while self._starts and self._starts[0].due <= time():
                await self._publish_start(self._starts.popleft())
            next_start = self._starts[0].due if self._starts else next_heartbeat
            try:
                async with asyncio.timeout_at(min(next_heartbeat, next_start)):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    async def announce_leaving(self) -> None:
        """Publish that the worker has left; not for long, since the bus may be away."""
        try:
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await self._publish_status(WORKER_LEFT_TOPIC, WorkerLeft)
        except TimeoutError:
            self._warnings.add("event_lost", error=f"no goodbye in {_GOODBYE_SECONDS:g} s")

    def heartbeat_now(self) -> None:
        """Do not wait for the next heartbeat's time."""
        self._heartbeat_wanted = True
        self._wake.set()

    def evaluation_started(self, request: EvaluationRequest, slot: int) -> None:
        """Publish that an evaluation has a slot, a moment later and if it has it still."""
        if len(self._starts) == _MAX_PENDING_STARTS:
            self._warnings.add(
                "event_lost", error=f"{_MAX_PENDING_STARTS} wait for the bus already"
            )
        due = asyncio.get_running_loop().time() + _START_DELAY_SECONDS
        self._starts.append(_Start(request, slot, due))
        if len(self._starts) == 1:
            self._wake.set()

    def slot_ready(self, slot: int) -> None:
        """A slot takes requests, whatever was the trouble before."""
        troubled = self._troubles.pop(slot, None) is not None
        if self._state == "starting":
            self._state = "ready"
        elif not troubled:
            return
        self.heartbeat_now()

    def slot_troubled(self, slot: int, trouble: str) -> None:
        """A slot takes nothing for a while."""
        self._troubles[slot] = trouble
        self.heartbeat_now()

    def slot_retired(self, slot: int, reason: str) -> None:
        """A slot takes nothing any more."""
        self._troubles.pop(slot, None)
        self._retired[slot] = reason
        self.heartbeat_now()

    def draining(self) -> None:
        """The worker takes nothing new any more."""
        self._state = "draining"
        self.heartbeat_now()

    async def _publish_status(
        self, topic: str, event: type[WorkerJoined | WorkerHeartbeat | WorkerLeft]
    ) -> None:
        await self._publish(
            topic, event(source=self._source, subject=self._options.name, data=self.status)
        )

    async def _publish_start(self, start: _Start) -> None:
        evaluation_id = start.request.evaluation_id
        if evaluation_id not in self._holdings.evaluation_ids:
            return
        data = EvaluationStart(
            evaluation_id=evaluation_id,
            sweep_id=start.request.sweep_id,
            worker=self._options.name,
            slot=start.slot,
        )
        event = EvaluationStarted(source=self._source, subject=evaluation_id, data=data)
        await self._publish(EVALUATION_STARTED_TOPIC, event)

    async def _publish(self, topic: str, envelope: Envelope[Any]) -> None:
        try:
            await self._bus.publish_event(topic, Message.of(envelope))
        except BusError as error:
            self._warnings.add("event_lost", error=str(error))


def worker_source(name: str) -> str:
    """The sender in a worker's envelopes."""
    return f"spica/worker/{name}"
