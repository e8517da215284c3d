"""What a worker tells of itself: heartbeats, evaluations that have started, its leaving.

All of it is news for those who watch. It goes out beside the work, so that a bus which is slow or
gone holds up no evaluation, and what cannot be told is counted and left out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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

_UNTOLD_STARTS = 2048
_TELLING_SECONDS = 0.25
"""Who has ended after so long again need not be told of: an event costs as much as a result."""
_GOODBYE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What stays the same in all that a worker tells."""

    name: str
    host: str
    pid: int
    engine_fingerprint: str
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The sender in an envelope."""
        return f"spica/worker/{self.name}"


@dataclass(frozen=True, slots=True)
class _Start:
    """An evaluation that got a slot, to be told of when the loop's clock shows `due`."""

    request: EvaluationRequest
    slot: int
    due: float


class Presence:
    """Knows how the worker is, and tells it.

    Args:
        bus: where events go.
        identity: of the worker.
        slots: how many it has.
        held: tells the ids of the evaluations that it holds.
        interval_seconds: between heartbeats.
        warnings: counts what could not be told.
    """

    def __init__(
        self,
        bus: Bus,
        identity: Identity,
        *,
        slots: int,
        held: Callable[[], list[str]],
        interval_seconds: float,
        warnings: CountedWarnings,
    ) -> None:
        self._bus = bus
        self._identity = identity
        self._slots = slots
        self._held = held
        self._interval_seconds = interval_seconds
        self._warnings = warnings
        self._state: WorkerState = "starting"
        self._retired: dict[int, str] = {}
        self._troubles: dict[int, str] = {}
        self._starts: deque[_Start] = deque(maxlen=_UNTOLD_STARTS)
        self._heartbeat_wanted = True
        self._wake = asyncio.Event()

    @property
    def status(self) -> WorkerStatus:
        """The worker as it is right now."""
        troubles = [*self._retired.values(), *self._troubles.values()]
        return WorkerStatus(
            worker=self._identity.name,
            host=self._identity.host,
            pid=self._identity.pid,
            engine_fingerprint=self._identity.engine_fingerprint,
            versions=dict(self._identity.versions),
            state=self._state,
            slots=self._slots - len(self._retired),
            evaluations=self._held(),
            # Slots of one worker have the same trouble as a rule.
            trouble="; ".join(dict.fromkeys(troubles)) or None,
            interval_seconds=self._interval_seconds,
        )

    async def run(self) -> None:
        """Tell everything until cancelled."""
        time = asyncio.get_running_loop().time
        next_heartbeat = time()
        joined = WorkerJoined(
            source=self._identity.source, subject=self._identity.name, data=self.status
        )
        await self._tell(WORKER_JOINED_TOPIC, joined)
        while True:
            if self._heartbeat_wanted or time() >= next_heartbeat:
                self._heartbeat_wanted = False
                # One that was asked for stands beside these: after a roll call a whole fleet would
                # else beat at the same time for good.
                if time() >= next_heartbeat:
                    next_heartbeat = time() + self._interval_seconds
                await self._tell(WORKER_HEARTBEAT_TOPIC, self._heartbeat())
            while self._starts and self._starts[0].due <= time():
                await self._tell_start(self._starts.popleft())
            next_start = self._starts[0].due if self._starts else next_heartbeat
            try:
                async with asyncio.timeout_at(min(next_heartbeat, next_start)):
                    await self._wake.wait()
            except TimeoutError:
                continue
            self._wake.clear()

    async def say_goodbye(self) -> None:
        """Tell that the worker has left; not for long, since nobody may be there to hear it."""
        left = WorkerLeft(
            source=self._identity.source, subject=self._identity.name, data=self.status
        )
        try:
            async with asyncio.timeout(_GOODBYE_SECONDS):
                await self._tell(WORKER_LEFT_TOPIC, left)
        except TimeoutError:
            self._warnings.add("event_lost", error=f"no goodbye in {_GOODBYE_SECONDS:g} s")

    def heartbeat_now(self) -> None:
        """Do not wait for the next heartbeat's time."""
        self._heartbeat_wanted = True
        self._wake.set()

    def evaluation_started(self, request: EvaluationRequest, slot: int) -> None:
        """Tell that an evaluation has a slot, a moment later and if it has it still."""
        if len(self._starts) == _UNTOLD_STARTS:
            self._warnings.add("event_lost", error=f"{_UNTOLD_STARTS} wait for the bus already")
        due = asyncio.get_running_loop().time() + _TELLING_SECONDS
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

    def _heartbeat(self) -> WorkerHeartbeat:
        return WorkerHeartbeat(
            source=self._identity.source, subject=self._identity.name, data=self.status
        )

    async def _tell_start(self, start: _Start) -> None:
        evaluation_id = start.request.evaluation_id
        if evaluation_id not in self._held():
            return
        data = EvaluationStart(
            evaluation_id=evaluation_id,
            sweep_id=start.request.sweep_id,
            worker=self._identity.name,
            slot=start.slot,
        )
        event = EvaluationStarted(source=self._identity.source, subject=evaluation_id, data=data)
        await self._tell(EVALUATION_STARTED_TOPIC, event)

    async def _tell(self, topic: str, envelope: Envelope[Any]) -> None:
        try:
            await self._bus.publish_event(topic, to_message(envelope))
        except BusError as error:
            self._warnings.add("event_lost", error=str(error))


def to_message(envelope: Envelope[Any]) -> Message:
    """The envelope as the bus carries it."""
    return Message(envelope.model_dump_json().encode(), envelope.id, envelope.type)
