"""The workers of a sweep, by their events.

`Fleet` is pure: no clock, no I/O. Events may come late, twice or in any order: what a worker
reported last, by its own clock, is what counts. Whether it is still there our clock decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from pydantic import ValidationError

from schemas.events import (
    EVALUATION_STARTED,
    WORKER_HEARTBEAT,
    WORKER_JOINED,
    WORKER_LEFT,
    EvaluationStarted,
    WorkerHeartbeat,
    WorkerJoined,
    WorkerLeft,
    WorkerState,
    WorkerStatus,
)
from spica_async.bus.counted import CountedWarnings
from spica_async.bus.port import Event

MISSED_HEARTBEATS: Final = 3
"""A worker that was not heard of for so many of its intervals is gone."""

_ASSUMED_INTERVAL_SECONDS = 10.0
"""Of a worker that has reported an evaluation, and not its status yet."""

_LONGEST_INTERVAL_SECONDS = 60.0
"""What a worker was holding when it died must not wait for ever to be missed."""

SHOW_SECONDS: Final = 0.5
"""Between one view and the next: nobody can read all events of a thousand workers."""

WorkerEvent = WorkerHeartbeat | WorkerJoined | WorkerLeft | EvaluationStarted

_EVENTS: Final[dict[str, type[WorkerEvent]]] = {
    WORKER_HEARTBEAT: WorkerHeartbeat,
    WORKER_JOINED: WorkerJoined,
    WORKER_LEFT: WorkerLeft,
    EVALUATION_STARTED: EvaluationStarted,
}

_Stamp = tuple[datetime, str]
"""Time and id of an event, so that no two of one worker have the same."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker with our engine, as it is shown."""

    name: str
    state: WorkerState
    slots: int
    busy: int


@dataclass(frozen=True, slots=True)
class FleetView:
    """What there is to show of the workers at one moment.

    Attributes:
        workers: those with our engine, by name.
        foreign: how many have another one, and take none of our requests.
        differences: what their engines differ in, each once.
        troubles: what keeps workers of ours from working, one line each.
        waiting_for: why nothing can be evaluated now; None when something can.
    """

    workers: tuple[WorkerView, ...] = ()
    foreign: int = 0
    differences: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    waiting_for: str | None = None

    @property
    def slots(self) -> int:
        """Evaluations that can run at once."""
        return sum(worker.slots for worker in self.workers)

    @property
    def busy(self) -> int:
        """Evaluations that are held now, whosever they are."""
        return sum(worker.busy for worker in self.workers)


@dataclass(slots=True)
class _Worker:
    """What one worker reported last, and what it has started since then."""

    heard_at: float
    status: WorkerStatus | None = None
    stamp: _Stamp | None = None
    left: bool = False
    started: dict[str, _Stamp] = field(default_factory=dict)

    @property
    def holds(self) -> set[str]:
        said = self.status.evaluations if self.status and not self.left else ()
        return {*said, *self.started}

    def gone(self, now: float) -> bool:
        interval = self.status.interval_seconds if self.status else _ASSUMED_INTERVAL_SECONDS
        return now - self.heard_at > MISSED_HEARTBEATS * min(interval, _LONGEST_INTERVAL_SECONDS)


class Fleet:
    """Workers by name, and the evaluations that they hold.

    Args:
        fingerprint: of the engine that our requests are for.
        versions: of the same engine's parts, to show how the engines of other workers differ.

    Attributes:
        fingerprint: see above.
        obstacle: what keeps requests from all workers, if anything does.
    """

    def __init__(self, fingerprint: str, versions: Mapping[str, str] | None = None) -> None:
        self.fingerprint = fingerprint
        self._versions = dict(versions or {})
        self._workers: dict[str, _Worker] = {}
        self._ended: set[str] = set()
        self.obstacle: str | None = None

    def heard(self, event: WorkerEvent, now: float) -> None:
        """Take a worker's event; without effect if a newer one of it was taken before."""
        sent = event.time if event.time.tzinfo else event.time.replace(tzinfo=UTC)
        stamp = (sent, event.id)
        worker = self._workers.get(event.data.worker)
        if worker is None:
            worker = self._workers[event.data.worker] = _Worker(heard_at=now)
        known = worker.stamp
        if isinstance(event, EvaluationStarted):
            known = worker.started.get(event.data.evaluation_id, known)
        if known is not None and stamp <= known:
            return
        if isinstance(event, EvaluationStarted):
            worker.started[event.data.evaluation_id] = stamp
        else:
            worker.status, worker.stamp = event.data, stamp
            worker.left = isinstance(event, WorkerLeft)
            worker.started = {
                evaluation: when for evaluation, when in worker.started.items() if when > stamp
            }
        worker.heard_at = now

    def ended(self, evaluation_id: str) -> None:
        """Note that an evaluation has its result, so that no worker holds it any more."""
        self._ended.add(evaluation_id)

    def held(self, now: float) -> set[str]:
        """The evaluations that workers hold, as far as these are known to be there."""
        self._forget_the_gone(now)
        return {held for worker in self._workers.values() for held in worker.holds} - self._ended

    def view(self, now: float) -> FleetView:
        """What to show."""
        self._forget_the_gone(now)
        present = [
            (worker.status, len(worker.holds - self._ended))
            for _, worker in sorted(self._workers.items())
            if worker.status is not None and not worker.left
        ]
        ours = [
            (status, busy)
            for status, busy in present
            if status.engine_fingerprint == self.fingerprint
        ]
        foreign = [s for s, _ in present if s.engine_fingerprint != self.fingerprint]
        differences = tuple(dict.fromkeys(map(self._difference, foreign)))
        return FleetView(
            workers=tuple(
                WorkerView(status.worker, status.state, status.slots, busy) for status, busy in ours
            ),
            foreign=len(foreign),
            differences=differences,
            troubles=tuple(f"{s.worker}: {s.trouble}" for s, _ in ours if s.trouble),
            waiting_for=self.obstacle
            or self._waiting_for([status for status, _ in ours], len(foreign), differences),
        )

    def _forget_the_gone(self, now: float) -> None:
        for name in [name for name, worker in self._workers.items() if worker.gone(now)]:
            del self._workers[name]

    def _difference(self, status: WorkerStatus) -> str:
        differing = [
            f"{name} {status.versions.get(name, 'missing')}, needed {version}"
            for name, version in self._needed_beside(status.versions).items()
            if status.versions and status.versions.get(name) != version
        ]
        return "; ".join(differing) or f"{status.engine_fingerprint}, needed {self.fingerprint}"

    def _needed_beside(self, versions: Mapping[str, str]) -> dict[str, str]:
        """Our versions, with what a worker alone has; nothing where ours are not known."""
        return {**dict.fromkeys(versions, "none"), **self._versions} if self._versions else {}

    def _waiting_for(
        self, ours: list[WorkerStatus], foreign: int, differences: tuple[str, ...]
    ) -> str | None:
        if any(status.state != "draining" for status in ours):
            return None
        if ours:
            return "every worker that is connected is about to leave"
        if not foreign:
            return f"no worker with engine {self.fingerprint} is connected"
        have = "worker has" if foreign == 1 else "workers have"
        return f"{foreign} {have} another engine ({'; '.join(differences)})"


class IgnoredEvent(StrEnum):
    """Why what came as a worker's event was ignored."""

    UNKNOWN_TYPE = "unknown_type"
    MALFORMED = "malformed"


class FleetWatch:
    """Keeps a fleet up to date with the events on a bus.

    Args:
        fleet: to keep up to date.
        on_view: takes each new view of the fleet; none: nobody looks.
        on_held: takes the evaluations that a worker has just reported to hold.
        warnings: counts what came as a worker's event and is none.
    """

    def __init__(
        self,
        fleet: Fleet,
        on_view: Callable[[FleetView], None] | None,
        on_held: Callable[[list[str]], None],
        warnings: CountedWarnings,
    ) -> None:
        self._fleet = fleet
        self._on_view = on_view
        self._on_held = on_held
        self._changed = asyncio.Event()
        self._warnings = warnings

    def changed(self) -> None:
        """Have the fleet shown anew, if it looks different."""
        self._changed.set()

    async def hear(self, events: AsyncIterator[Event]) -> None:
        """Take events for as long as there are any."""
        now = asyncio.get_running_loop().time
        async for event in events:
            message = event.message
            model = _EVENTS.get(message.type)
            if model is None:
                self._warnings.add("event_ignored", IgnoredEvent.UNKNOWN_TYPE, type=message.type)
                continue
            try:
                reported = model.model_validate_json(message.body)
            except ValidationError as error:
                self._warnings.add(
                    "event_ignored", IgnoredEvent.MALFORMED, errors=error.error_count()
                )
                continue
            self._fleet.heard(reported, now())
            # At once: when it is looked at later, the worker may have fallen silent.
            if isinstance(reported, EvaluationStarted):
                self._on_held([reported.data.evaluation_id])
            elif not isinstance(reported, WorkerLeft):
                self._on_held(reported.data.evaluations)
            self.changed()

    async def show(self, every_seconds: float) -> None:
        """Hand out each view that differs from the last, at a rate that can be followed.

        A worker that is gone sends no event, so the view is made `every_seconds` in any case.
        """
        if self._on_view is None:
            return
        now = asyncio.get_running_loop().time
        shown: FleetView | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(every_seconds):
                    await self._changed.wait()
            self._changed.clear()
            view = self._fleet.view(now())
            if view != shown:
                self._on_view(view)
                shown = view
            await asyncio.sleep(SHOW_SECONDS)
