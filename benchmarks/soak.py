"""Sweeps over RabbitMQ under random faults; nothing may be lost, and nothing counted twice.

    python benchmarks/soak.py --seconds 600 --seed 1

Starts a RabbitMQ node and worker processes of its own, with replays that only sleep, and throws a
random fault every few seconds: workers and children are killed, paused, sent away; the broker is
killed, stopped, choked; connections and channels are cut, stalled, broken; queues are deleted and
littered. After each sweep every candidate must have exactly one result, its own, the queues must be
empty, and no process may be left. The exit code is 1 when that does not hold.

The seed settles which faults come and in which order; what they meet is up to the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))  # For `support`.

from support.broker import BrokerNode, VirtualHost, why_missing
from support.faults.soak import Soak, Tallies

console = Console(width=150, highlight=False)


def main() -> int:
    """Soak, print what happened, and tell whether all was well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600, help="how long faults are thrown")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random")
    options = parser.parse_args()
    missing = why_missing()
    if missing is not None:
        console.print(f"error: {missing}")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="spica-soak-"))
    log_to(folder / "coordinator.log")
    began = time.monotonic()
    broken = None
    with BrokerNode() as node:
        soak = Soak(
            VirtualHost(node, "/", node.url()), folder, seed=options.seed, report=console.print
        )
        try:
            asyncio.run(until_told(soak.run(options.seconds)))
        except asyncio.CancelledError:
            console.print(f"stopped; logs are in {folder}")
            return 130
        except Exception:  # noqa: BLE001 - whatever it is, the figures and the seed are told with it
            broken = traceback.format_exc()
            (folder / "broker.log").write_text(node.log_tail(2000))
    show(soak.tallies, time.monotonic() - began)
    if broken is not None:
        console.print(broken, markup=False)
        console.print(f"broken: again with --seed {options.seed}; logs are in {folder}")
        return 1
    shutil.rmtree(folder)
    console.print(f"nothing lost, nothing counted twice (seed {options.seed})")
    return 0


async def until_told(work: Coroutine[Any, Any, None]) -> None:
    """Do the work; SIGINT and SIGTERM cancel it, so that what it has started is stopped."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await work


def log_to(path: Path) -> None:
    """The coordinator's log lines go to a file, and those of the client library nowhere."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=path.open("a", buffering=1)),
    )
    logging.basicConfig(level=logging.CRITICAL)


def show(tallies: Tallies, seconds: float) -> None:
    """Print the figures."""
    faults = Table("fault", "times", title="Faults thrown")
    for kind, times in sorted(tallies.faults.items()):
        faults.add_row(kind, str(times))
    faults.add_section()
    faults.add_row("all", str(tallies.faults.total()))
    console.print(faults)
    figures = Table("figure", "value", title="What came of it")
    for name, value in (
        ("sweeps that ended exactly", tallies.sweeps),
        ("unique results", tallies.results),
        ("of these poisonous, failed as child_died", tallies.failed),
        ("evaluations started", tallies.starts),
        ("late results dropped", tallies.late),
        ("requests sent again", tallies.resent),
        *((f"dropped by {name}", count) for name, count in sorted(tallies.dropped.items())),
    ):
        figures.add_row(name, str(value))
    figures.add_row("seconds", f"{seconds:.0f}")
    console.print(figures)


if __name__ == "__main__":
    sys.exit(main())
