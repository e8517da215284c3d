"""A sweep over a real broker, under way in the test's own loop, and what must hold at its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final
from unittest.mock import patch

from support.faults.fates import WAIT_SECONDS, until
from support.faults.workers import FINGERPRINT
from support.planning import plan
from support.searching import Ledger, NoLog, sweep_of

from schemas.config import Schedule
from schemas.results import CandidateRecord, SweepResult
from spica_async.bus.address import BrokerAddress
from spica_async.bus.port import Bus
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.rabbitmq.state import BusState
from spica_async.evaluate.fleet import Fleet, FleetView
from spica_async.evaluate.in_flight import LOST_AFTER_SECONDS, WATCH_SECONDS, Evaluations, Watch
from spica_async.plan.types import SweepPlan, enumerable_points
from spica_async.report.folder_writer import FolderWriter
from spica_async.search.observer import Observers
from spica_async.search.stopping import SweepStop
from spica_async.search.sweep_run import SweepRun

_ROUNDS: Final = 3
_CHOICES: Final = 9
_SIZES: Final = (1, 2, 4, 8)


def plan_of(candidates: int, *, parallel: int = 4, schedule: Schedule = "rounds") -> SweepPlan:
    """The plan of a search with exactly so many distinct candidates, a multiple of 9 up to 36.

    The budget covers each of them, so they are listed in a random order rather than searched.
    """
    found = plan(
        {
            "gpu_budget": 8,
            "parallel_configs": [{"tp": size} for size in _SIZES[: candidates // _CHOICES]],
            "agg_max_num_batched_tokens": [8192, 16384, 32768],
            "agg_max_num_seqs": [256, 512, 1024],
        },
        sweep={
            "schedule": schedule,
            "max_rounds": _ROUNDS,
            "candidates_per_round": candidates // _ROUNDS,
            "parallel_evals": parallel,
            "random_seed": 7,
        },
    )
    assert [enumerable_points(found.config, space) for space in found.branches] == [candidates]
    return found


class _KnownEvaluations(Evaluations):
    """Keeps those that are open, and looks after its requests as often as the test wants.

    Attributes:
        opened: by coordinator.
        impatient: coordinators that look ten times as often.
    """

    opened: ClassVar[dict[str, Evaluations]] = {}
    impatient: ClassVar[set[str]] = set()

    def __init__(self, bus: Bus, fleet: Fleet, *, coordinator: str, **options: Any) -> None:
        patience = 0.1 if coordinator in self.impatient else 1.0
        watch = Watch(WATCH_SECONDS * patience, LOST_AFTER_SECONDS * patience)
        super().__init__(bus, fleet, coordinator=coordinator, watch=watch, **options)
        self.opened[coordinator] = self


@dataclass
class RunningSweep:
    """A sweep that runs beside the test.

    Attributes:
        sweep_id: its name.
        budget: how many candidates it is to evaluate.
        records: what it has published so far, in order.
        states: of its bus, as they were published.
        stop: what Ctrl-C requests.
        bus: its own.
        folder: takes what it finds.
    """

    sweep_id: str
    budget: int
    bus: RabbitBus
    folder: FolderWriter
    ledger: Ledger = field(default_factory=Ledger)
    states: list[BusState] = field(default_factory=list)
    stop: SweepStop = field(default_factory=SweepStop)
    task: asyncio.Task[SweepResult] | None = None

    @property
    def fleet(self) -> FleetView:
        """What it has shown of the workers last."""
        return self.ledger.fleets[-1] if self.ledger.fleets else FleetView()

    @property
    def has_ended(self) -> bool:
        """Whether there is a result to be had, or an error."""
        return self.task is not None and self.task.done()

    @property
    def per_round(self) -> int:
        """How many candidates a round is for; while one of them is held, no other round begins."""
        return self.budget // _ROUNDS

    @property
    def records(self) -> list[CandidateRecord]:
        """What it has found so far, in order."""
        return self.ledger.records

    @property
    def found_ids(self) -> list[str]:
        """The candidates of `records`."""
        return [record.candidate_id for record in self.records]

    @property
    def dropped(self) -> dict[str, int]:
        """How many messages it has dropped: results, dead letters, events."""
        warnings = _KnownEvaluations.opened[self.sweep_id].warnings
        return {
            "results": warnings.kinds("result_discarded").total(),
            "dead_letters": warnings.kinds("dead_letter_dropped").total(),
            "events": warnings.kinds("event_ignored").total(),
        }

    async def found(self, count: int) -> None:
        """Wait until so many candidates have their result."""
        await until(
            lambda: len(self.records) >= count or self.has_ended, f"{count} results are there"
        )
        assert len(self.records) >= count, "the sweep has ended"

    async def result(self, *, within_seconds: float = WAIT_SECONDS) -> SweepResult:
        """Wait for its end, and return what it came to or raise what it raised."""
        assert self.task is not None
        async with asyncio.timeout(within_seconds):
            return await self.task

    def abort(self) -> None:
        """End it as a second Ctrl-C does."""
        assert self.task is not None
        self.task.cancel()


@asynccontextmanager
async def sweeping(
    url: str,
    folder: Path,
    *,
    candidates: int = 18,
    parallel: int = 4,
    schedule: Schedule = "rounds",
    sweep_id: str = "sweep",
    grace_seconds: float = 0.0,
    impatient: bool = False,
) -> AsyncIterator[RunningSweep]:
    """Run a sweep while the context is open; the end stops it, if nothing else has.

    One that is `impatient` looks after its queues and its requests ten times as often.
    """
    states: list[BusState] = []
    found = plan_of(candidates, parallel=parallel, schedule=schedule)
    if impatient:
        _KnownEvaluations.impatient.add(sweep_id)
    with patch("spica_async.search.sweep_run.Evaluations", _KnownEvaluations):
        async with (
            FolderWriter.open(folder, sweep_id) as results,
            RabbitBus.open(
                BrokerAddress.from_options(url),
                name=f"spica-coordinator-{sweep_id}",
                private_queues=f"spica.results.{sweep_id}",
                on_state=lambda state, _: states.append(state),
            ) as bus,
        ):
            running = RunningSweep(
                sweep_id,
                candidates,
                bus,
                results,
                states=states,
                stop=SweepStop(grace_seconds=grace_seconds),
            )
            sweep = sweep_of(found, sweep_id=sweep_id, folder=results.path, fingerprint=FINGERPRINT)
            run = SweepRun(sweep, NoLog(), Observers(results, running.ledger), stop=running.stop)
            running.task = asyncio.create_task(run.run(bus), name=sweep_id)
            try:
                yield running
            finally:
                running.task.cancel()
                # What it raised is for the test that asks for its result.
                await asyncio.wait({running.task})
                _KnownEvaluations.impatient.discard(sweep_id)
