"""Sweeps whose time is up while they are planned."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.daemons import QuickInputs, small_config
from support.jobs import run

from spica_async.bus.memory import MemoryBus
from spica_async.config.inputs import Inputs
from spica_async.errors import TimeUpError, first_cause
from spica_async.journal.opening import JournalOptions
from spica_async.plan.types import Progress, SweepPlan
from spica_async.service.jobs import NewJob


class EndlessInputs(QuickInputs):
    """Planned for ever."""

    async def plan(self, progress: Progress) -> SweepPlan:
        await asyncio.Event().wait()
        return await super().plan(progress)


def new(inputs: type[Inputs], root: Path, max_seconds: float) -> NewJob:
    config = small_config()
    sweep = config.sweep.model_copy(update={"max_seconds": max_seconds})
    limited = config.model_copy(update={"sweep": sweep})
    journal = JournalOptions(root / "journal.sqlite3")
    return NewJob(inputs(limited, None, 1), root=root, journal=journal, use_cache=False)


async def test_planning_counts(tmp_path: Path) -> None:
    with pytest.raises(BaseExceptionGroup) as refusal:
        await run(new(EndlessInputs, tmp_path, 0.05), MemoryBus())
    cause = first_cause(refusal.value)
    assert isinstance(cause, TimeUpError)
    assert str(cause) == "sweep.max_seconds: 0.05 s were up while the sweep was still being planned"


async def test_a_plan_in_time_leaves_the_rest_of_it(tmp_path: Path) -> None:
    result = await run(new(QuickInputs, tmp_path, 3600.0), MemoryBus())
    assert result.status in {"completed", "exhausted"}
