"""What dies beside a sweep ends it, and journal and event name the cause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.jobs import new, run

from schemas.journal import SWEEP_FACT, Stopped
from schemas.lifecycle import SWEEP_EVENT, SweepFailed
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import BusUnavailableError, Message
from spica_async.errors import SpicaError, first_cause
from spica_async.journal.opening import JournalOptions, opened
from spica_async.plan.types import SweepPlan
from spica_async.report.folder_writer import FolderWriter
from spica_async.service.jobs import Job
from spica_async.service.local_worker import local_worker
from workers.settings import ChildSettings, WorkerOptions


async def told_of(job: Job, options: JournalOptions) -> tuple[str, str]:
    """Why a sweep has failed, by the journal's last fact and by the last event."""
    async with opened(options) as journal:
        recorded = await journal.latest(job.sweep_id, ["stopped"])
        assert recorded is not None
        stopped = SWEEP_FACT.validate_json(recorded.fact.body)
        events = [SWEEP_EVENT.validate_json(one.body) async for one in journal.events(job.sweep_id)]
        assert (await journal.sweep(job.sweep_id)).status == "failed"
    assert isinstance(stopped, Stopped)
    assert stopped.failed
    assert isinstance(events[-1].data, SweepFailed)
    return stopped.reason or "", events[-1].data.reason


def worker_without_evaluator(folder: Path) -> WorkerOptions:
    """One whose children cannot be started."""
    children = ChildSettings(
        evaluator="nowhere:at_all",
        warm_up=None,
        log_folder=folder,
        start_attempts=1,
        start_seconds=20,
    )
    return WorkerOptions("test", slots=1, drain_seconds=0, children=children)


async def test_a_worker_that_cannot_start_its_children(
    tmp_path: Path, options: JournalOptions
) -> None:
    job, bus = new(options, tmp_path), MemoryBus()

    def companion(_: SweepPlan, folder: FolderWriter) -> AbstractAsyncContextManager[None]:
        return local_worker(bus, worker_without_evaluator(folder.logs))

    # No other worker gets on with it.
    with pytest.raises(ExceptionGroup) as caught:
        await run(job, bus, gate=asyncio.Semaphore(0), companion=companion)
    cause = first_cause(caught.value)
    assert isinstance(cause, SpicaError)
    assert "no replay can be started: " in str(cause)
    assert "nowhere" in str(cause)
    assert await told_of(job, options) == (str(cause), str(cause))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SpicaError("the disk is gone"), "the disk is gone"),
        (KeyError("slot"), "unexpected KeyError: 'slot'"),
    ],
)
async def test_whatever_else_is_there(
    tmp_path: Path, options: JournalOptions, error: Exception, reason: str
) -> None:
    job = new(options, tmp_path)

    @asynccontextmanager
    async def companion(_: SweepPlan, __: FolderWriter) -> AsyncIterator[None]:
        async def die() -> None:
            raise error

        async with asyncio.TaskGroup() as group:
            group.create_task(die())
            yield

    with pytest.raises(ExceptionGroup) as caught:
        await run(job, MemoryBus(), gate=asyncio.Semaphore(0), companion=companion)
    assert first_cause(caught.value).args == error.args
    assert await told_of(job, options) == (reason, reason)


class UnpublishingBus(MemoryBus):
    """Has a bug that shows when the sweep tells that it has begun."""

    async def publish_event(self, topic: str, message: Message, *, confirmed: bool = False) -> None:
        if topic == "sweep.started":
            raise TypeError("no such topic")
        await super().publish_event(topic, message, confirmed=confirmed)


async def test_the_outbox(tmp_path: Path, options: JournalOptions) -> None:
    job = new(options, tmp_path)
    with pytest.raises(ExceptionGroup):
        await run(job, UnpublishingBus(), gate=asyncio.Semaphore(0))
    assert await told_of(job, options) == ("unexpected TypeError: no such topic",) * 2


async def test_the_bodys_own_word_goes_first(tmp_path: Path) -> None:
    """Where both have lost the broker, what is told of the sweep does not name the worker."""

    async def lose_both() -> None:
        async with local_worker(MemoryBus(), worker_without_evaluator(tmp_path)):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise BusUnavailableError("mine") from None

    with capture_logs() as logs, pytest.raises(BusUnavailableError, match="mine"):
        await lose_both()
    (line,) = [line for line in logs if line["event"] == "local_worker.failed"]
    assert "no replay can be started" in line["error"]
