"""What an evaluation costs when few, and when very many workers share the work."""

from __future__ import annotations

import os
from dataclasses import dataclass
from statistics import mean

from support.broker import BrokerNode

from over_broker.coordinator import empty_evaluations, many_at_once, opened_bus
from over_broker.figures import Figure
from over_broker.fleet import FleetOptions, ready, running_fleet
from over_broker.processes import Meter, Spent

_IN_FLIGHT = 64
_MOST_BUSES = 20
_WARM_UP = 500
_MOST_TIMES_AS_MUCH = 1.3


@dataclass(frozen=True, slots=True)
class _Run:
    workers: int
    evaluations: int
    spent: Spent

    @property
    def milliseconds(self) -> float:
        """By the clock, of each evaluation."""
        return 1000 * self.spent.seconds / self.evaluations

    @property
    def cpu_milliseconds(self) -> float:
        """Of broker, coordinator and workers, of each evaluation."""
        return 1000 * sum(self.spent.cpu_seconds) / self.evaluations

    def __str__(self) -> str:
        broker, coordinator, workers = (
            f"{1000 * seconds / self.evaluations:.2f}" for seconds in self.spent.cpu_seconds
        )
        return (
            f"{self.workers:,} workers: {self.cpu_milliseconds:.2f} ms (broker {broker},"
            f" coordinator {coordinator}, workers {workers}) in {self.milliseconds:.2f} ms by the"
            f" clock; others used {self.spent.others_share:.0%}"
        )


async def measure(node: BrokerNode, *, quick: bool, most: int) -> list[Figure]:
    """The same number of empty evaluations shared by 10, 200 and the most workers.

    Each worker is a real supervisor with one slot and heartbeats, with a channel for requests and
    a queue for what it is told. All are in one process, and share up to 20 buses. The same number
    is in flight each time, and few and most take turns. The cost is CPU time, which tells more
    than the clock does on a machine that others use, too.
    """
    evaluations = 1000 if quick else 5000
    few = 10
    counts = [few, min(200, most), most, few]
    if not quick:
        counts += [most, few]
    runs = [await _run(node, workers, evaluations) for workers in counts]
    fewest = [run for run in runs if run.workers == few]
    largest = [run for run in runs if run.workers == most]
    what = f"of an evaluation among {most:,} workers, by that among {few}"
    return [
        Figure(
            f"CPU time {what}",
            mean(run.cpu_milliseconds for run in largest)
            / mean(run.cpu_milliseconds for run in fewest),
            "x",
            f"{evaluations:,} evaluations, {_IN_FLIGHT} in flight; CPU time of each\n"
            + "\n".join(map(str, runs)),
            at_most=_MOST_TIMES_AS_MUCH,
        ),
        Figure(
            f"time by the clock {what}",
            mean(run.milliseconds for run in largest) / mean(run.milliseconds for run in fewest),
            "x",
            "as above",
        ),
    ]


async def _run(node: BrokerNode, workers: int, evaluations: int) -> _Run:
    fleet = FleetOptions(
        node.url(), f"among-{workers}", workers=workers, buses=min(workers, _MOST_BUSES)
    )
    async with opened_bus(fleet.url, fleet.fingerprint) as bus:
        with running_fleet(fleet) as process:
            await ready(bus, fleet, process)
            async with empty_evaluations(bus, fleet.fingerprint, _IN_FLIGHT) as evaluate:
                # Enough for each worker's first one.
                await many_at_once(evaluate, _WARM_UP + workers, _IN_FLIGHT)
                meter = Meter(node.pid, os.getpid(), process.pid)
                await many_at_once(evaluate, evaluations, _IN_FLIGHT)
                return _Run(workers, evaluations, meter.spent())
