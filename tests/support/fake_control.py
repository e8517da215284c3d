"""A daemon that runs nothing: sweeps are what tests put in, and events what tests publish."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from schemas.config import SmartSearchConfig
from schemas.daemon import CandidatePage, StoredState, SweepDetail, SweepState, SweepSummary
from schemas.lifecycle import (
    CandidateMeasured,
    Lifecycle,
    SweepEvent,
    SweepFailed,
    SweepFinished,
    SweepPaused,
    SweepSubmitted,
)
from schemas.messages import Sample
from schemas.results import CandidateRecord, CandidateTimings, RankedCandidate
from spica_async.journal.port import SweepUnknownError
from spica_async.report.folder import config_document
from spica_async.service.port import (
    ArtifactUnknownError,
    Events,
    QueueFullError,
    SweepPage,
    UnreadableEvent,
    WrongStateError,
)

FINAL = frozenset({"cancelled", "completed", "nothing_feasible", "time_limit"})
_FIRST = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class FakeSweep:
    """One sweep: what is published of it, and what has happened to it."""

    detail: SweepDetail
    use_cache: bool = True
    records: list[CandidateRecord] = field(default_factory=list)
    artifacts: dict[str, bytes] = field(default_factory=dict)
    events: list[SweepEvent | UnreadableEvent] = field(default_factory=list)


class FakeControl:
    """A `Control` whose sweeps move when tests say so.

    Attributes:
        capacity: sweeps that it takes before its queue is full.
        refusal: raised by every verb but `events`, where there is one.
        looks: how often one of its sweeps was shown.
        listeners: that follow events now.
        asked_after: the number that each of them has asked to go on from.
    """

    def __init__(self) -> None:
        self.known: dict[str, FakeSweep] = {}
        self.capacity = 100
        self.looks = 0
        self.refusal: Exception | None = None
        self.known_troubles: list[str] = []
        self.listeners = 0
        self.asked_after: list[int] = []
        self._changed = asyncio.Condition()
        self._all: list[SweepEvent | UnreadableEvent] = []

    async def submit(
        self,
        config: SmartSearchConfig,
        *,
        priority: int,
        use_cache: bool,
        token: str | None = None,
    ) -> SweepSummary:
        self._refuse()
        if len(self.known) >= self.capacity:
            raise QueueFullError(f"{self.capacity} sweeps wait, which is as many as may")
        number = len(self.known) + 1
        detail = SweepDetail(
            sweep_id=f"sweep-{number}",
            state="queued",
            priority=priority,
            submitted_at=_FIRST + timedelta(minutes=number),
            model=config.search_space.model_name,
            hardware=config.search_space.hardware_sku,
            target=config.goal.target.value,
            config=config_document(config),
            results_dir=f"results/sweep-{number}",
        )
        self.known[detail.sweep_id] = FakeSweep(detail, use_cache)
        submitted = SweepSubmitted(
            model=detail.model, hardware=detail.hardware, target=detail.target, priority=priority
        )
        await self.publish(detail.sweep_id, submitted)
        return _summary(detail)

    async def sweeps(
        self,
        state: StoredState | None = None,
        *,
        before: str | None = None,
        offset: int = 0,
        limit: int = 1000,
    ) -> SweepPage:
        self._refuse()
        found = [
            sweep.detail
            for sweep in reversed(self.known.values())
            if state in (None, sweep.detail.state)
        ]
        names = [sweep.sweep_id for sweep in found]
        begin = offset + (names.index(before) if before is not None else 0)
        rest = names[begin + limit :]
        page = [_summary(detail) for detail in found[begin : begin + limit]]
        return SweepPage(page, rest[0] if rest else None)

    async def counts(self) -> Mapping[SweepState, int]:
        self._refuse()
        return Counter(sweep.detail.state for sweep in self.known.values())

    async def has_more_events(self, sweep_id: str, *, after: int) -> bool:
        self._refuse()
        return after < len(self._find(sweep_id).events) or not self._over(sweep_id)

    async def sweep(self, sweep_id: str) -> SweepDetail:
        self._refuse()
        self.looks += 1
        return self._find(sweep_id).detail

    async def candidates(self, sweep_id: str, *, offset: int, limit: int) -> CandidatePage:
        self._refuse()
        records = self._find(sweep_id).records
        return CandidatePage(
            total=len(records), offset=offset, candidates=records[offset : offset + limit]
        )

    async def artifact(self, sweep_id: str, candidate_id: str) -> bytes:
        self._refuse()
        artifact = self._find(sweep_id).artifacts.get(candidate_id)
        if artifact is None:
            raise ArtifactUnknownError(f"candidate {candidate_id} has left no artifact")
        return artifact

    async def cancel(self, sweep_id: str) -> SweepSummary:
        return await self._stop(sweep_id, "cancelled")

    async def remove(self, sweep_id: str) -> None:
        self._refuse()
        if self._find(sweep_id).detail.state in ("queued", "running"):
            raise WrongStateError(f"sweep {sweep_id} is under way")
        del self.known[sweep_id]

    async def pause(self, sweep_id: str) -> SweepSummary:
        return await self._stop(sweep_id, "paused")

    async def resume(self, sweep_id: str) -> SweepSummary:
        self._refuse()
        if self._find(sweep_id).detail.state not in ("paused", "failed", "interrupted"):
            raise WrongStateError(f"{sweep_id} is not at rest")
        return self.change(sweep_id, state="queued")

    async def events(self, sweep_id: str | None, *, after: int = 0) -> Events:
        self.asked_after.append(after)
        self.listeners += 1
        try:
            published = self._all if sweep_id is None else self._find(sweep_id).events
            place = len(published) if sweep_id is None else after
            while True:
                async with self._changed:
                    while len(published) <= place and not self._over(sweep_id):
                        await self._changed.wait()
                if place >= len(published):
                    return
                place += 1
                yield published[place - 1]
        finally:
            self.listeners -= 1

    async def troubles(self) -> Sequence[str]:
        return self.known_troubles

    async def publish(
        self, sweep_id: str, *happenings: Lifecycle, state: SweepState | None = None
    ) -> None:
        """Let things happen to a sweep; its state follows, unless it is given."""
        sweep = self._find(sweep_id)
        for data in happenings:
            event = SweepEvent.of(sweep_id, len(sweep.events) + 1, data)
            sweep.events.append(event)
            self._all.append(event)
            match data:
                case CandidateMeasured():
                    sweep.records.append(data.candidate)
                case SweepFinished():
                    self.change(sweep_id, state=data.result.status, reason=data.result.reason)
                case SweepFailed():
                    self.change(sweep_id, state="failed", reason=data.reason)
                case SweepPaused():
                    stopped = data.kind.removeprefix("sweep.")
                    self.change(sweep_id, state=stopped, reason=data.reason)
        if state is not None:
            self.change(sweep_id, state=state)
        async with self._changed:
            self._changed.notify_all()

    def lose(self, sweep_id: str, number: int) -> None:
        """Have an event been written by another version."""
        events = self._find(sweep_id).events
        lost = UnreadableEvent(sweep_id, number)
        self._all[self._all.index(events[number - 1])] = lost
        events[number - 1] = lost

    def change(self, sweep_id: str, **changes: object) -> SweepSummary:
        """Change what is shown of a sweep."""
        sweep = self._find(sweep_id)
        sweep.detail = sweep.detail.model_copy(update=changes)
        return _summary(sweep.detail)

    async def listened(self, count: int = 1) -> None:
        """Return as soon as so many listen to events."""
        while self.listeners != count:  # noqa: ASYNC110  # they come over a socket
            await asyncio.sleep(0.01)

    async def looked_at(self, count: int) -> None:
        """Return as soon as sweeps were shown so often."""
        while self.looks < count:  # noqa: ASYNC110  # they are asked for over a socket
            await asyncio.sleep(0.01)

    async def _stop(self, sweep_id: str, state: SweepState) -> SweepSummary:
        self._refuse()
        if self._over(sweep_id):
            raise WrongStateError(f"{sweep_id} has ended: {self._find(sweep_id).detail.state}")
        kind = "sweep.cancelled" if state == "cancelled" else "sweep.paused"
        await self.publish(sweep_id, SweepPaused(kind=kind, reason="asked for"))
        return _summary(self._find(sweep_id).detail)

    def _over(self, sweep_id: str | None) -> bool:
        return sweep_id is not None and self._find(sweep_id).detail.state in FINAL

    def _find(self, sweep_id: str) -> FakeSweep:
        if sweep_id not in self.known:
            raise SweepUnknownError(f"there is no sweep {sweep_id}")
        return self.known[sweep_id]

    def _refuse(self) -> None:
        if self.refusal is not None:
            raise self.refusal


def _summary(detail: SweepDetail) -> SweepSummary:
    return SweepSummary.model_validate(detail.model_dump())


def sample(replicas: int = 1) -> Sample:
    """A deployment on two GPUs for each replica."""
    return {
        "deployment_mode": "agg",
        "backend": "vllm",
        "replicas": replicas,
        "tp": 2,
        "pp": 1,
        "attention_dp": 1,
        "moe_tp": 1,
        "moe_ep": 1,
        "strategy": "tp",
        "used_gpus": 2 * replicas,
        "router_mode": "round_robin",
        "planner_scaling_policy": "disabled",
        "max_num_seqs": 256,
    }


def record(number: int = 0, *, feasible: bool = True) -> CandidateRecord:
    """A candidate with 100 tok/s for each that came before it, or one that failed."""
    return CandidateRecord(
        candidate_id=f"candidate-{number}",
        branch="agg",
        round=1,
        number=number,
        outcome="feasible" if feasible else "failed",
        cause=None if feasible else "build_error",
        detail=None if feasible else "it broke",
        score=100.0 * number if feasible else None,
        objectives={"throughput": 100.0 * number} if feasible else None,
        used_gpus=2,
        config=sample(),
        metrics=dict.fromkeys(METRICS, 1.5) if feasible else None,
        source="optimizer",
        worker="a",
        timings=CandidateTimings(waited=0.1, build=0.2, replay=0.3, wall=0.6),
        found_seconds=1.0 + number,
    )


def ranked(number: int) -> RankedCandidate:
    """The same candidate in a ranking."""
    found = record(number)
    assert found.objectives is not None
    assert found.metrics is not None
    return RankedCandidate(
        candidate_id=found.candidate_id,
        score=found.objectives["throughput"],
        objectives=found.objectives,
        used_gpus=found.used_gpus,
        config=found.config,
        metrics=found.metrics,
    )


METRICS = (
    "mean_ttft_ms",
    "mean_itl_ms",
    "mean_e2e_latency_ms",
    "output_throughput_tok_s",
    "gpu_hours",
    "duration_ms",
)
