"""What messaging over RabbitMQ costs, against its goals; the exit code is 1 when one is missed.

    python benchmarks/messaging.py
    python benchmarks/messaging.py --only round-trip idle --quick

Starts a RabbitMQ node of its own, and needs nothing but Debian's `rabbitmq-server`. Figures are
ratios within one run wherever they can be, since machines differ and are shared.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # For `support`.

from over_broker import busy_slots, idle_worker, many_workers, round_trip
from over_broker.figures import Figure, show
from support.broker import BrokerNode, why_missing

from spica_async.cli.logs import log_warnings_to_stderr

MOST_WORKERS = 1000
FEWER_WORKERS = 300
WANTED_FILES = 16_384
"""That the node may have open for the most workers: queues, connections and their logs."""

Measure = Callable[[BrokerNode], Coroutine[Any, Any, list[Figure]]]

console = Console(width=150)


def file_limit() -> int:
    """The files that a node of ours may have open, at most as many as it could want."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return WANTED_FILES if hard == resource.RLIM_INFINITY else min(hard, WANTED_FILES)


def measurements(*, quick: bool, most_workers: int) -> dict[str, Measure]:
    """All there are, by the names that `--only` takes."""
    return {
        "round-trip": partial(round_trip.measure, quick=quick),
        "busy-slots": partial(busy_slots.measure, quick=quick),
        "many-workers": partial(many_workers.measure, quick=quick, most=most_workers),
        "idle": partial(idle_worker.measure, quick=quick),
    }


def main() -> int:
    """Measure, print the table, and tell whether every goal is met."""
    names = list(measurements(quick=False, most_workers=MOST_WORKERS))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="some of them")
    parser.add_argument("--quick", action="store_true", help="fewer of everything, rougher figures")
    options = parser.parse_args()
    missing = why_missing()
    if missing is not None:
        parser.error(missing)
    most_workers = MOST_WORKERS
    if file_limit() < WANTED_FILES:
        most_workers = FEWER_WORKERS
        console.print(
            f"A node may open only {file_limit():,} files here, not {WANTED_FILES:,}:"
            f" {most_workers} workers are the most."
        )
    chosen = measurements(quick=options.quick, most_workers=most_workers)
    log_warnings_to_stderr()
    signal.signal(signal.SIGTERM, _exit)
    figures: list[Figure] = []
    console.print(f"Load average at the start: {_load_average()}; {os.cpu_count()} cores.")
    with BrokerNode(file_limit=file_limit()) as node:
        for name in options.only:
            console.print(f"Measuring {name} ...")
            figures += asyncio.run(chosen[name](node))
    console.print(f"Load average at the end, with our own: {_load_average()}.")
    show(console, figures)
    return 0 if all(figure.is_met for figure in figures) else 1


def _load_average() -> str:
    return " ".join(f"{load:.1f}" for load in os.getloadavg())


def _exit(number: int, _: object) -> NoReturn:
    """End as by Ctrl-C, with everything that was started."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
