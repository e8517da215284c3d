"""The workers of a sweep, by what they tell of themselves.

Pure: no clock, no I/O. Events may come late, twice or in any order: what a worker said last, by its
own clock, is what counts. Whether it is still there is told by ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from schemas.events import (
    EvaluationStarted,
    WorkerHeartbeat,
    WorkerJoined,
    WorkerLeft,
    WorkerState,
    WorkerStatus,
)

MISSED_HEARTBEATS: Final = 3
"""A worker that was not heard of for so many of its intervals is gone."""

_ASSUMED_INTERVAL_SECONDS = 10.0
"""Of a worker that has told of an evaluation, and not of itself yet."""

_LONGEST_INTERVAL_SECONDS = 60.0
"""What a worker was holding when it died must not wait for ever to be missed."""

WorkerEvent = WorkerHeartbeat | WorkerJoined | WorkerLeft | EvaluationStarted

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
    """What one worker said last, and what it has started since then."""

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
        versions: of the same engine's parts, to tell what another one differs in.

    Attributes:
        obstacle: what keeps requests from all workers, if anything does.
    """

    def __init__(self, fingerprint: str, versions: Mapping[str, str]) -> None:
        self._fingerprint = fingerprint
        self._versions = dict(versions)
        self._workers: dict[str, _Worker] = {}
        self._ended: set[str] = set()
        self.obstacle: str | None = None

    def heard(self, event: WorkerEvent, now: float) -> None:
        """Take what a worker tells; without effect if it has told something newer."""
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
        """An evaluation has its result: whoever said to hold it does so no more."""
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
            if status.engine_fingerprint == self._fingerprint
        ]
        foreign = [s for s, _ in present if s.engine_fingerprint != self._fingerprint]
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
        return "; ".join(differing) or f"{status.engine_fingerprint}, needed {self._fingerprint}"

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
            return f"no worker with engine {self._fingerprint} is connected"
        have = "worker has" if foreign == 1 else "workers have"
        return f"{foreign} {have} another engine ({'; '.join(differences)})"
