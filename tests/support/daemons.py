"""Daemons whose plans and replays take no time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from support.killing.driver import FINGERPRINT, sweep_plan
from support.planning import FakeEngine
from support.searching import FakeWorker, succeed_or_fail

from schemas.config import SmartSearchConfig
from schemas.daemon import SweepDetail, SweepSummary
from schemas.lifecycle import SweepEvent
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Bus
from spica_async.bus.topology import declare, requests_queue
from spica_async.config.inputs import Inputs
from spica_async.evaluate.cache.port import NoCache
from spica_async.journal.port import Journal
from spica_async.journal.sql import SqlJournal
from spica_async.plan.build import plan_sweep
from spica_async.plan.types import Progress, SweepPlan
from spica_async.service.manager import SweepManager
from spica_async.service.runner import ManagerSettings

BUDGET = 12
PATIENCE_SECONDS = 60


def small_config(**sweep: Any) -> SmartSearchConfig:
    """Two branches of six candidates each, with failures and duplicates among them."""
    config = sweep_plan("rounds").config
    return config.model_copy(update={"sweep": config.sweep.model_copy(update=sweep)})


@dataclass(frozen=True, slots=True)
class QuickInputs(Inputs):
    """Plans with an engine whose answers are known."""

    async def plan(self, progress: Progress) -> SweepPlan:
        return plan_sweep(self.config, FakeEngine(), self.trace, progress)


def quick_inputs(config: SmartSearchConfig, note: Callable[[str], None]) -> Inputs:
    return QuickInputs(config, None, 1)


def make_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let daemons of this process plan without the engine, for workers that have none."""
    monkeypatch.setattr("spica_async.service.runner.inputs_of", quick_inputs)
    monkeypatch.setattr("spica_async.service.runner.LOOK_SECONDS", 0.1)
    monkeypatch.setattr("spica_async.service.run_sweep.engine_fingerprint", lambda: FINGERPRINT)
    monkeypatch.setattr("spica_async.service.run_sweep.engine_versions", dict)


@dataclass
class RunningDaemon:
    """A daemon's manager at work, with its own bus and worker."""

    manager: SweepManager
    worker: FakeWorker
    stop: asyncio.Event
    journal: Journal

    async def until(self, sweep_id: str, *states: str) -> SweepDetail:
        """Wait until a sweep is in one of these states."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (detail := await self.manager.sweep(sweep_id)).state not in states:  # noqa: ASYNC110  # as a client does
                await asyncio.sleep(0.02)
        return detail

    async def listed(self) -> Sequence[SweepSummary]:
        """All sweeps, the latest first."""
        return (await self.manager.sweeps()).sweeps

    async def events(self, sweep_id: str | None, *, after: int = 0) -> AsyncIterator[SweepEvent]:
        """What happens, all of which can be read."""
        async for event in self.manager.events(sweep_id, after=after):
            assert isinstance(event, SweepEvent)
            yield event

    async def submit(self, config: SmartSearchConfig | None = None, priority: int = 0) -> str:
        summary = await self.manager.submit(
            config or small_config(), priority=priority, use_cache=False
        )
        return summary.sweep_id


@asynccontextmanager
async def daemon(
    where: str | Path,
    output: Path,
    *,
    bus: Bus | None = None,
    worker: FakeWorker | None = None,
    workers_bus: Bus | None = None,
    **settings: Any,
) -> AsyncIterator[RunningDaemon]:
    """Run a daemon while the context is open; the end stops it in good order."""
    bus = bus or MemoryBus()
    await declare(bus, requests_queue(FINGERPRINT))
    worker = worker or FakeWorker(bus, measure=succeed_or_fail, slots=2)
    worker.bus = workers_bus or bus
    stop = asyncio.Event()
    made = replace(ManagerSettings(output=output, slots=2), **settings)
    async with SqlJournal.open(where) as journal, worker.running():
        manager = SweepManager(journal, bus, NoCache(), made)
        async with asyncio.TaskGroup() as group:
            group.create_task(manager.run(stop))
            try:
                yield RunningDaemon(manager, worker, stop, journal)
            finally:
                stop.set()
