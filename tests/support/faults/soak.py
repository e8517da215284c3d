"""Sweeps over a real broker under faults that come at random, from one seed."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from support.broker import VirtualHost
from support.faults.check import check_exact, check_nothing_is_left
from support.faults.fates import Fate, Fates
from support.faults.havoc import HEARTBEAT_SECONDS, LITTERING, Havoc
from support.faults.litter import Fuzzer
from support.faults.sweeps import RunningSweep, sweeping
from support.faults.workers import Workers
from support.proxy import tcp_proxy

from schemas.config import Schedule

CANDIDATES: Final = 36
SLOTS: Final = 8
SCHEDULES: Final[tuple[Schedule, ...]] = ("continuous", "rounds")
REPLAY_SECONDS: Final = 0.7
SWEEP_SECONDS: Final = 240.0
"""What one sweep may take, once there are no more faults."""
_PAUSE_SECONDS: Final = (0.3, 4.0)
"""Between one fault and the next, at random."""


@dataclass
class Tallies:
    """What a soak has done so far.

    Attributes:
        faults: by kind.
        sweeps: that have ended as they should.
        results: unique ones, which is what was asked for.
        starts: of evaluations, of which some were lost and some were in vain.
        failed: poisonous candidates, which failed as they should.
        late: results that came a second time.
        resent: requests that were sent again.
        dropped: garbage, by who dropped it.
    """

    faults: Counter[str] = field(default_factory=Counter)
    sweeps: int = 0
    results: int = 0
    starts: int = 0
    failed: int = 0
    late: int = 0
    resent: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


class Soak:
    """One sweep after the other, each with workers of its own, on one node.

    Args:
        vhost: of a node that is killed and choked, among other things.
        folder: takes logs and results.
        seed: of all that is random here.
        report: takes a line for a person.
    """

    def __init__(
        self, vhost: VirtualHost, folder: Path, *, seed: int, report: Callable[[str], None]
    ) -> None:
        self.tallies = Tallies()
        self._vhost = vhost
        self._folder = folder
        self._random = random.Random(seed)
        self._fuzzer = Fuzzer(seed)
        self._report = report

    async def run(self, seconds: float) -> None:
        """Throw faults for so long, and then let the last sweep come to its end.

        Raises:
            AssertionError: something was lost, counted twice, or left behind.
            TimeoutError: a sweep did not end without faults either.
        """
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await self._sweep(f"sweep-{self.tallies.sweeps}", until)

    async def _sweep(self, sweep_id: str, until: float) -> None:
        began = time.monotonic()
        fates = Fates(self._folder / sweep_id / "fates")
        port = self._vhost.node.port
        async with tcp_proxy(port) as coordinators, tcp_proxy(port) as workers_proxy:
            workers_url = f"{workers_proxy.url(self._vhost.url)}?heartbeat={HEARTBEAT_SECONDS}"
            async with (
                Workers.open(workers_url, fates, seconds=REPLAY_SECONDS) as workers,
                sweeping(
                    f"{coordinators.url(self._vhost.url)}?heartbeat={HEARTBEAT_SECONDS}",
                    self._folder / sweep_id,
                    candidates=CANDIDATES,
                    parallel=SLOTS,
                    schedule=SCHEDULES[self.tallies.sweeps % len(SCHEDULES)],
                    sweep_id=sweep_id,
                    impatient=True,
                ) as sweep,
            ):
                havoc = Havoc(
                    self._vhost,
                    sweep,
                    workers,
                    fates,
                    proxies=(coordinators, workers_proxy),
                    random=self._random,
                    fuzzer=self._fuzzer,
                )
                faults = await self._throw(havoc, until)
                result = await sweep.result(within_seconds=SWEEP_SECONDS)
                poisonous = fates.taken(Fate.KILL_CHILD)
                await check_exact(
                    sweep,
                    result,
                    failed=dict.fromkeys(poisonous, "child_died"),
                    may_resend=True,
                )
                await check_nothing_is_left(
                    workers,
                    self._vhost,
                    sweep_id,
                    littered=not LITTERING.isdisjoint(faults),
                )
        self._count(sweep, fates, workers, failed=len(poisonous))
        tally = result.tally
        self.tallies.late += tally.late_results
        self.tallies.resent += tally.resent_requests
        self._report(
            f"{sweep_id}: {sweep.budget} results from {len(fates.starts)} starts in"
            f" {time.monotonic() - began:.0f} s; {len(poisonous)} poisonous,"
            f" {tally.late_results} late, {tally.resent_requests} sent again;"
            f" {' '.join(faults)}"
        )

    async def _throw(self, havoc: Havoc, until: float) -> list[str]:
        """Throw faults until the sweep has ended, or the time is up; then make all well again."""
        thrown = []
        havoc.join()
        havoc.join()
        try:
            while time.monotonic() < until:
                await asyncio.sleep(self._random.uniform(*_PAUSE_SECONDS))
                if havoc.sweep.has_ended:
                    break
                kind = havoc.draw()
                thrown.append(kind)
                self.tallies.faults[kind] += 1
                await havoc.throw(kind)
        finally:
            await havoc.mend()
        return thrown

    def _count(self, sweep: RunningSweep, fates: Fates, workers: Workers, *, failed: int) -> None:
        self.tallies.sweeps += 1
        self.tallies.results += sweep.budget
        self.tallies.starts += len(fates.starts)
        self.tallies.failed += failed
        for name, count in sweep.dropped.items():
            self.tallies.dropped[f"coordinator: {name}"] += count
        for worker in workers.all:
            for entry in worker.events("worker.ended"):
                for name, count in entry.items():
                    if name.startswith(("malformed_", "unknown_")):
                        self.tallies.dropped[f"worker: {name}"] += count
