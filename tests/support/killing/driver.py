"""Runs sweeps with the random profile, each in a process with a moment at which it is to die.

Reads one JSON object per line, a `Command`, and answers each with one, an `Answer`. The libraries
are loaded and a sweep is planned once: every sweep runs in a fork of this process.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from support.killing.steps import Steps
from support.planning import plan
from support.searching import FakeWorker, Ledger, succeed_or_fail, sweep_of

from schemas.journal import Planned
from spica_async.bus.address import BrokerAddress
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Bus
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.topology import declare, requests_queue
from spica_async.evaluate.fleet import Fleet
from spica_async.evaluate.in_flight import Evaluations, Watch
from spica_async.journal.leases import take, this_owner
from spica_async.journal.port import Lease, SweepUnknownError
from spica_async.journal.sql import SqlJournal
from spica_async.plan.types import SweepPlan
from spica_async.report.folder_writer import FolderWriter
from spica_async.search import sweep_run
from spica_async.search.events.pending import PendingEvents
from spica_async.search.fact_log import SweepLog
from spica_async.search.observer import Observers
from spica_async.search.past_runs import MEMORY_BUS, PastRuns
from spica_async.search.stopping import SweepStop
from spica_async.service.jobs import new_sweep

FINGERPRINT: Final = "engine"
_LEASE_SECONDS: Final = 30.0
# SQLAlchemy loads one when a database is first opened: in each fork anew, if it is not here.
_DIALECTS: Final = ("sqlalchemy.dialects.sqlite", "sqlalchemy.dialects.postgresql.asyncpg")


@dataclass(frozen=True)
class Command:
    """A sweep to run or to go on with.

    Attributes:
        sweep_id: its name; one that the journal has is gone on with.
        journal: URL.
        bus: the URL of a broker, on which somebody answers requests; none: all in one process.
        root: the folder of its folder.
        schedule: of the sweep.
        die_at: number of the step to die at, from 1; 0 for none.
        die_after: seconds after which to die; 0 for never.
        stop_at: number of a result after which it is asked to stop; 0 for none.
        per_branch: candidates of each branch, of which there are two; none: the small sweep.
        noisy: whether the best are measured again, and held against a baseline.
    """

    sweep_id: str
    journal: str
    bus: str | None
    root: str
    schedule: str = "rounds"
    die_at: int = 0
    die_after: float = 0.0
    stop_at: int = 0
    per_branch: int | None = None
    noisy: bool = False


@functools.cache
def sweep_plan(schedule: str, *, noisy: bool = False) -> SweepPlan:
    """Two branches of 2 rounds of 3 candidates each, with failures and duplicates among them."""
    return plan(
        {
            "gpu_budget": 2,
            "deployment_mode": ["agg", "disagg"],
            "agg_max_num_batched_tokens": [8192, 16384],
            "agg_max_num_seqs": [256, 512],
            "decode_max_num_seqs": [256, 512, 1024],
            "prefill_max_num_seqs": [1, 2],
            "router_mode": ["kv_router" if noisy else "round_robin"],
        },
        goal={"target": "throughput"},
        baseline={"tp": 1} if noisy else None,
        sweep={
            "schedule": schedule,
            "max_rounds": 2,
            "candidates_per_round": 3,
            "parallel_evals": 3,
            "random_seed": 3,
            "optimizer": {"profile": "random"},
        },
    )


@functools.cache
def long_plan(per_branch: int) -> SweepPlan:
    """Two branches of so many candidates each, of several times as many; the best are confirmed."""
    return plan(
        {
            "gpu_budget": 64,
            "deployment_mode": ["agg", "disagg"],
            "agg_max_num_batched_tokens": [8192, 16384, 32768],
            "agg_max_num_seqs": [256, 512, 1024],
            "router_mode": ["kv_router"],
        },
        goal={"target": "throughput"},
        sweep={
            "schedule": "continuous",
            "max_rounds": per_branch,
            "candidates_per_round": 1,
            "parallel_evals": 8,
            "random_seed": 3,
            "optimizer": {"profile": "random"},
        },
    )


def _planned(command: Command) -> SweepPlan:
    if command.per_branch is None:
        return sweep_plan(command.schedule, noisy=command.noisy)
    return long_plan(command.per_branch)


class _ImpatientEvaluations(Evaluations):
    """Looks after its requests so often that a test need not wait for it."""

    def __init__(self, bus: Bus, fleet: Fleet, **options: Any) -> None:
        super().__init__(bus, fleet, watch=Watch(0.1, lost_after_seconds=1.0), **options)


async def _run(command: Command) -> None:
    sweep_run.Evaluations = _ImpatientEvaluations  # type: ignore[attr-defined]  # imported there
    lease = Lease(this_owner(), _LEASE_SECONDS)
    root = Path(command.root)
    found = _planned(command)
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(SqlJournal.open(command.journal))
        past = PastRuns()
        try:
            await take(journal, command.sweep_id, lease)
        except SweepUnknownError:
            folder = root / command.sweep_id
            await journal.create(new_sweep(command.sweep_id, found.config, folder), lease)
        else:
            past = await PastRuns.read(journal, command.sweep_id)
        row = await journal.sweep(command.sweep_id)
        events = PendingEvents(command.sweep_id, found.config, stored=row.events)
        log = await stack.enter_async_context(
            SweepLog(journal, command.sweep_id, lease, last=past.last, events=events).open()
        )
        results = await stack.enter_async_context(
            FolderWriter.open(root, command.sweep_id, resumed=True)
        )
        if past.planned is None:
            planned = Planned(
                at=0,
                digest=found.digest,
                versions={},
                planning_seconds=0,
                branches=[],
                replicates=True,
            )
            await log.record(planned, lambda: None)
        bus = await stack.enter_async_context(_bus(command))
        stop = SweepStop()
        ledger = Ledger()
        ledger.on_record = lambda _: (
            stop.request() if len(ledger.records) == command.stop_at else None
        )
        sweep = sweep_of(
            found,
            sweep_id=command.sweep_id,
            folder=results.path,
            fingerprint=FINGERPRINT,
            past=past,
        )
        run = sweep_run.SweepRun(
            sweep,
            log,
            Observers(results, events, ledger),
            stop=stop,
            owner=lease.owner,
            bus_name=command.bus or MEMORY_BUS,
        )
        if past.ended is not None:
            await run.show_end(past.ended)
        else:
            await run.run(bus, spent_seconds=past.elapsed_seconds)


@asynccontextmanager
async def _bus(command: Command) -> AsyncIterator[Bus]:
    if command.bus is None:
        bus = MemoryBus()
        await declare(bus, requests_queue(FINGERPRINT))
        async with FakeWorker(bus, measure=succeed_or_fail, slots=2).running():
            yield bus
        return
    async with RabbitBus.open(
        BrokerAddress.from_options(command.bus),
        name=f"spica-coordinator-{command.sweep_id}-{os.getpid()}",
        private_queues=f"spica.results.{command.sweep_id}",
    ) as rabbit:
        yield rabbit


def _in_child(command: Command, report: int) -> int:
    steps = Steps(command.die_at)
    steps.watch_everything()
    if command.die_after:
        # Nobody handles this signal, so that it ends the process as SIGKILL does.
        signal.setitimer(signal.ITIMER_REAL, command.die_after)
    try:
        asyncio.run(_run(command))
    except BaseException:  # noqa: BLE001  # whatever it is, the test has to see it
        traceback.print_exc()
        return 1
    finally:
        os.write(report, json.dumps(steps.taken).encode())
    return 0


def _answer(command: Command) -> dict[str, Any]:
    _planned(command)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Logs are no answers.
        os._exit(_in_child(command, writing))
    os.close(writing)
    written = b""
    while chunk := os.read(reading, 65536):
        written += chunk
    os.close(reading)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return {
        "killed": code in {-signal.SIGKILL, -signal.SIGALRM},
        "code": code,
        "steps": json.loads(written) if written else [],
    }


def main() -> None:
    """Answer until there is nothing more to read."""
    for dialect in _DIALECTS:
        importlib.import_module(dialect)
    for line in sys.stdin:
        print(json.dumps(_answer(Command(**json.loads(line)))), flush=True)  # noqa: T201  # the answer


if __name__ == "__main__":
    main()
