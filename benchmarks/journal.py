"""What the journal costs an evaluation, and what a resume and the daemon's answers take with it.

    python benchmarks/journal.py

Runs searches of the random profile whose replays only sleep, on the embedded bus, with a journal in
SQLite and, where Debian's PostgreSQL is installed, in that. Prints a table and ends with exit
code 1 where a goal is missed:

- the journal keeps an evaluation waiting for at most 5 ms, in the median;
- a sweep with 10,000 finished candidates is resumed within 5 s, the sampler's own start apart;
- the daemon's list of sweeps, its first and its last page, its metrics, and one sweep with 10,000
  candidates, come within 100 ms over HTTP, with 100,000 other sweeps in the journal;
- what is looked at every second, and by each event stream, comes within 10 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # For `support`.

import httpx2
import structlog
from support.killing.driver import FINGERPRINT, long_plan
from support.many_sweeps import add_ended
from support.postgres import PostgresNode, why_missing
from support.searching import FakeWorker, Ledger, NoLog, sweep_of

from schemas.journal import Measured, Planned, Requested, SweepFact
from schemas.results import CandidateRecord
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Delivery
from spica_async.bus.topology import declare, requests_queue
from spica_async.evaluate.cache.port import NoCache
from spica_async.journal.port import Journal, Lease
from spica_async.journal.sql import SqlJournal
from spica_async.report.folder_writer import FolderWriter
from spica_async.search.events.pending import PendingEvents
from spica_async.search.fact_log import FactLog, ResultT, SweepLog
from spica_async.search.observer import Observers
from spica_async.search.past_runs import PastRuns
from spica_async.search.stopping import SweepStop
from spica_async.search.sweep_run import SweepRun
from spica_async.service.http.app import make_app
from spica_async.service.http.server import serve
from spica_async.service.http.settings import HttpSettings
from spica_async.service.http.tokens import Tokens, new_token
from spica_async.service.jobs import new_sweep
from spica_async.service.manager import SweepManager
from spica_async.service.runner import ManagerSettings
from spica_async.storage.address import sqlite_url

_MOST_WAIT_MS: Final = 5.0
_MOST_RESUME_SECONDS: Final = 5.0
_MOST_ANSWER_MS: Final = 100.0
_MOST_LOOK_MS: Final = 10.0
_PAGE: Final = 100
_REPLAY_SECONDS: Final = 0.2
_LEASE: Final = Lease("benchmark", 3600.0)

console = Console(width=130, highlight=False)


@dataclass
class Waits:
    """A log that measures for how long each evaluation, and the search as a whole, wait for it."""

    log: FactLog
    of_evaluations: defaultdict[tuple[str, int], float] = field(
        default_factory=lambda: defaultdict(float)
    )
    of_search: float = 0.0

    async def record(
        self,
        fact: SweepFact,
        apply: Callable[[], ResultT],
        *,
        status: str | None = None,
        verdict: Callable[[], CandidateRecord | None] | None = None,
    ) -> ResultT:
        """Record a fact, and take the time of it."""
        began = time.perf_counter()
        try:
            return await self.log.record(fact, apply, status=status, verdict=verdict)
        finally:
            waited = time.perf_counter() - began
            if isinstance(fact, Requested | Measured):
                self.of_evaluations[fact.branch, fact.number] += waited
            else:
                self.of_search += waited

    async def settled(self) -> None:
        """Wait for the log; that is no evaluation's time."""
        await self.log.settled()

    def note(self, fact: SweepFact) -> None:
        """Nobody waits for it."""
        self.log.note(fact)

    @property
    def median_ms(self) -> float:
        """Of the evaluations, with their part of what the search itself waited for."""
        shared = self.of_search / len(self.of_evaluations)
        return 1000 * (statistics.median(self.of_evaluations.values()) + shared)


@dataclass
class SleepingWorker(FakeWorker):
    """Answers each request after a while."""

    seconds: float = 0.0

    async def _answer(self, delivery: Delivery, pace: random.Random) -> None:
        await asyncio.sleep(self.seconds)
        await super()._answer(delivery, pace)


@asynccontextmanager
async def worked_bus(seconds: float) -> AsyncIterator[MemoryBus]:
    """A bus with a worker whose replays take so long."""
    bus = MemoryBus()
    await declare(bus, requests_queue(FINGERPRINT))
    async with SleepingWorker(bus, slots=4, seconds=seconds).running():
        yield bus


@asynccontextmanager
async def opened(
    journal: Journal, name: str, per_branch: int, root: Path, stop_at: int | None = None
) -> AsyncIterator[tuple[SweepRun, Waits]]:
    """A run of a sweep of the journal's, new or to be resumed, that has not begun.

    It is stopped once it has found `stop_at`.
    """
    plan = long_plan(per_branch)
    if name not in {row.sweep_id for row in await journal.sweeps()}:
        await journal.create(new_sweep(name, plan.config, root / name), _LEASE)
    await journal.take(name, _LEASE)
    past = await PastRuns.read(journal, name)
    row = await journal.sweep(name)
    events = PendingEvents(name, plan.config, stored=row.events)
    async with (
        SweepLog(journal, name, _LEASE, last=past.last, events=events).open() as log,
        FolderWriter.open(root, name, resumed=True) as folder,
    ):
        waits = Waits(log)
        if past.planned is None:
            digest = plan.digest
            planned = Planned(at=0, digest=digest, versions={}, planning_seconds=0, branches=[])
            await log.record(planned, lambda: None)
        sweep = sweep_of(
            plan, sweep_id=name, folder=folder.path, fingerprint=FINGERPRINT, past=past
        )
        stop, ledger = SweepStop(), Ledger()
        ledger.on_record = lambda _: stop.request() if len(ledger.records) == stop_at else None
        yield SweepRun(sweep, waits, Observers(folder, events, ledger), stop=stop), waits


async def work(run: SweepRun, replay_seconds: float) -> None:
    """Run a sweep to its end."""
    async with worked_bus(replay_seconds) as bus:
        await run.run(bus)


async def overhead(url: str, root: Path, evaluations: int) -> tuple[float, float, float]:
    """Milliseconds that an evaluation waits for the journal, and of CPU for each, with and without.

    The second and third are of the whole coordinator.
    """
    cpu = []
    for with_journal in (True, False):
        async with (
            SqlJournal.open(url) as journal,
            opened(journal, f"overhead-{with_journal}", evaluations // 2, root) as (run, waits),
        ):
            if not with_journal:
                waits.log = NoLog()
            began = time.process_time()
            await work(run, _REPLAY_SECONDS)
            cpu.append(1000 * (time.process_time() - began) / evaluations)
            if with_journal:
                median = waits.median_ms
    return median, cpu[0], cpu[1]


async def fill(url: str, root: Path, candidates: int) -> None:
    """Have a sweep that is at rest with so many candidates, out of twice as many."""
    async with (
        SqlJournal.open(url) as journal,
        opened(journal, "large", candidates, root, stop_at=candidates) as (run, _),
    ):
        await work(run, 0.0)


async def resume(url: str, root: Path, candidates: int) -> float:
    """Seconds until the search is where it was."""
    began = time.perf_counter()
    async with (
        SqlJournal.open(url) as journal,
        opened(journal, "large", candidates, root) as (run, _),
    ):
        search = await run.restore()
        taken = time.perf_counter() - began
        found = sum(len(branch.candidates) for branch in search.branches)
        assert found >= candidates, found
    return taken


async def answers(url: str, root: Path, sweeps: int) -> dict[str, float]:
    """Milliseconds, in the median, until the daemon has answered, each over the loopback."""
    token = new_token()
    settings = HttpSettings(Tokens.of([token]), port=0)
    first = time.time() - 2.0 * sweeps
    paths = {
        f"list of {_PAGE} of {sweeps:,} sweeps": f"/v1/sweeps?limit={_PAGE}",
        "the list's last page": f"/v1/sweeps?limit={_PAGE}&before={first + _PAGE}~x",
        "those in one state": f"/v1/sweeps?limit={_PAGE}&state=completed",
        "metrics": "/metrics",
        "one sweep at rest": "/v1/sweeps/large",
        "100 of its candidates": "/v1/sweeps/large/candidates?offset=9000&limit=100",
    }
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(SqlJournal.open(url))
        other = new_sweep("other", long_plan(1).config, root)
        await add_ended(journal, sweeps, first=first, config=other.config, summary=other.summary)
        manager = SweepManager(journal, MemoryBus(), NoCache(), ManagerSettings(output=root))
        stop = asyncio.Event()
        app = make_app(manager, settings, stop)
        base = await stack.enter_async_context(serve(app, settings, stop))
        client = await stack.enter_async_context(
            httpx2.AsyncClient(base_url=base, headers={"Authorization": f"Bearer {token}"})
        )
        await client.get(
            "/health"
        )  # What a client loads for its first request is not the daemon's.

        async def ask(path: str) -> float:
            began = time.perf_counter()
            response = await client.get(path)
            response.raise_for_status()
            return 1000 * (time.perf_counter() - began)

        cold = {f"{name}, first": await ask(path) for name, path in paths.items()}
        later = {
            name: statistics.median([await ask(path) for _ in range(20)])
            for name, path in paths.items()
        }
        return cold | later


async def looks(url: str) -> dict[str, float]:
    """Milliseconds, in the median, of what is asked of the journal again and again."""
    async with SqlJournal.open(url) as journal:
        since = (await journal.recent_events()).at
        asked: dict[str, Callable[[], Awaitable[object]]] = {
            "what a daemon looks for each second": lambda: journal.wanted(["queued", "running"]),
            "what an outbox looks for each second": journal.unpublished,
            "what an event stream looks for": lambda: journal.recent_events(since),
        }
        found = {}
        for name, ask in asked.items():
            times = []
            for _ in range(20):
                began = time.perf_counter()
                await ask()
                times.append(1000 * (time.perf_counter() - began))
            found[name] = statistics.median(times)
        return found


@contextmanager
def stores(root: Path) -> Iterator[dict[str, str]]:
    """The journals to measure, by name."""
    urls = {"SQLite": sqlite_url(root / "journal.sqlite3")}
    if why_missing() is not None:
        console.print(f"without PostgreSQL: {why_missing()}")
        yield urls
        return
    with PostgresNode(durable=True) as node:
        yield urls | {"PostgreSQL": node.url(node.add_database())}


def main() -> int:
    """Measure, print the table, and tell whether the goals are met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--evaluations", type=int, default=400)
    parser.add_argument("--candidates", type=int, default=10_000)
    parser.add_argument("--sweeps", type=int, default=100_000)
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    table = Table("store", "figure", "value", "goal", title="The journal")
    missed = 0

    def add(store: str, name: str, value: float, unit: str, most: float | None) -> None:
        nonlocal missed
        goal = "" if most is None else f"at most {most:g} {unit}"
        if most is not None and value > most:
            missed += 1
            goal += ", missed"
        table.add_row(store, name, f"{value:.2f} {unit}", goal)

    async def measure(store: str, url: str, root: Path) -> None:
        waited, with_, without = await overhead(url, root, options.evaluations)
        add(store, "wait of an evaluation for the journal", waited, "ms", _MOST_WAIT_MS)
        add(store, "CPU of the coordinator for an evaluation", with_, "ms", None)
        add(store, "the same without a journal", without, "ms", None)
        await fill(url, root, options.candidates)
        seconds = await resume(url, root, options.candidates)
        name = f"resume with {options.candidates:,} candidates"
        add(store, name, seconds, "s", _MOST_RESUME_SECONDS)
        for name, took in (await answers(url, root, options.sweeps)).items():
            add(store, name, took, "ms", _MOST_ANSWER_MS)
        for name, took in (await looks(url)).items():
            add(store, name, took, "ms", _MOST_LOOK_MS)

    with (
        tempfile.TemporaryDirectory(prefix="spica-journal-") as folder,
        stores(Path(folder)) as all_,
    ):
        for store, url in all_.items():
            root = Path(folder) / store
            root.mkdir()
            asyncio.run(measure(store, url, root))
    console.print(table)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
