"""What a worker takes that has nothing to do."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import suppress

import psutil
from support.broker import BrokerNode

from over_broker.coordinator import opened_bus
from over_broker.figures import Figure
from over_broker.processes import check_alive, running
from spica_async.bus.topology import requests_queue
from spica_async.engine.versions import engine_fingerprint

_MOST_PERCENT = 1.0
_MOST_MIB = 150.0
_READY_SECONDS = 300.0
_SETTLE_SECONDS = 3.0


async def measure(node: BrokerNode, *, quick: bool) -> list[Figure]:
    """The worker as a program, with one slot whose child has loaded the engine and waits.

    Its CPU time is that of the worker and its child; memory is the worker's own, which never
    imports the engine.
    """
    seconds = 10.0 if quick else 30.0
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--bus", node.url(), "--slots", "1", "--trace-cache", folder]
        async with opened_bus(node.url(), engine_fingerprint()) as bus:
            with running("workers", arguments) as worker:
                queue = requests_queue(engine_fingerprint()).name
                async with asyncio.timeout(_READY_SECONDS):
                    while (await bus.queue_status(queue)).consumers == 0:
                        check_alive([worker])
                        await asyncio.sleep(0.1)
                await asyncio.sleep(_SETTLE_SECONDS)
                process = psutil.Process(worker.pid)
                before = _cpu_seconds(process)
                await asyncio.sleep(seconds)
                own, children = (
                    100 * (after - earlier) / seconds
                    for after, earlier in zip(_cpu_seconds(process), before, strict=True)
                )
                resident = process.memory_info().rss / 2**20
                below = sum(child.memory_info().rss for child in process.children(recursive=True))
    return [
        Figure(
            "CPU of an idle worker",
            own + children,
            "% of a core",
            f"over {seconds:g} s with heartbeats; {own:.2f} the worker, {children:.2f} its child",
            at_most=_MOST_PERCENT,
        ),
        Figure(
            "memory of an idle worker, without its children",
            resident,
            "MiB",
            f"resident set size; its child, with the engine, has {below / 2**20:,.0f}",
            at_most=_MOST_MIB,
            digits=0,
        ),
    ]


def _cpu_seconds(process: psutil.Process) -> tuple[float, float]:
    """Of the process, and of all its descendants."""
    below = 0.0
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            below += sum(child.cpu_times()[:2])
    return sum(process.cpu_times()[:2]), below
