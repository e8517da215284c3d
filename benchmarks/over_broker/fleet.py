"""Workers without an engine, several in one process: real supervisors, simulated slots.

python -m over_broker.fleet '<the fields of FleetOptions as JSON>'
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from subprocess import Popen

import structlog
from pydantic import TypeAdapter

from over_broker.ending import when_told
from over_broker.load import EMPTY
from over_broker.processes import BENCHMARKS, check_alive, running
from schemas.messages import EvaluationRequest, Measurement
from spica_async.bus.address import BrokerAddress
from spica_async.bus.port import Bus
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.topology import requests_queue
from workers.port import ChildDeaths, EvaluationSlot, SlotStatistics
from workers.settings import DEFAULT_HEARTBEAT_SECONDS, ChildSettings, WorkerOptions
from workers.slot import Slot
from workers.supervisor import Supervisor

_SLOT_BYTES = 2**40
_READY_SECONDS = 300.0
_LOOK_SECONDS = 0.1
_BETWEEN_STARTS_SECONDS = 0.01
_SLEEPING = ChildSettings(
    evaluator="over_broker.sleeping:evaluate", warm_up=None, import_paths=(str(BENCHMARKS),)
)


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """How many workers to have and how; `buses` is the number of connections they share.

    Slots of a worker that sleeps have a child each, whose replays take a second; the others
    answer at once, without a child.
    """

    url: str
    fingerprint: str
    workers: int = 1
    slots: int = 1
    buses: int = 1
    sleeping: bool = False
    heartbeat_seconds: float = DEFAULT_HEARTBEAT_SECONDS

    @property
    def all_slots(self) -> int:
        """Of all workers together."""
        return self.workers * self.slots


class EmptySlot:
    """Implements `EvaluationSlot`: every evaluation ends at once, and well."""

    is_warm = True

    def __init__(self, index: int) -> None:
        self.index = index
        self.statistics = SlotStatistics()

    async def start(self) -> None:
        """There is nothing to start."""

    async def evaluate(self, request: EvaluationRequest, deaths: ChildDeaths) -> Measurement:  # noqa: ARG002  # the port's
        """The same measurement each time."""
        self.statistics.evaluations += 1
        return EMPTY

    async def end(self) -> None:
        """Nothing runs."""

    def kill(self) -> None:
        """Nothing runs."""

    async def close(self) -> None:
        """There is nothing to close."""


@contextmanager
def running_fleet(options: FleetOptions) -> Iterator[Popen[bytes]]:
    """A process with these workers; their requests' queue must be declared."""
    arguments = TypeAdapter(FleetOptions).dump_json(options).decode()
    with running("over_broker.fleet", [arguments]) as process:
        yield process


async def ready(bus: Bus, options: FleetOptions, *processes: Popen[bytes]) -> None:
    """Wait until every slot takes requests.

    Raises:
        ProcessEndedError: one of the processes is gone.
        TimeoutError: that takes too long.
    """
    queue = requests_queue(options.fingerprint).name
    async with asyncio.timeout(_READY_SECONDS):
        while (await bus.queue_status(queue)).consumers < options.all_slots:
            check_alive(processes)
            await asyncio.sleep(_LOOK_SECONDS)


async def _run(options: FleetOptions) -> None:
    ending = when_told()
    address = BrokerAddress.from_options(options.url)
    async with AsyncExitStack() as stack:
        buses = [
            await stack.enter_async_context(
                RabbitBus.open(
                    address,
                    name=f"spica-worker-benchmark-{os.getpid()}-{number}",
                    private_queues=f"spica.worker.benchmark-{os.getpid()}-{number}",
                )
            )
            for number in range(options.buses)
        ]
        supervisors = [
            _supervisor(buses[number % options.buses], options, number)
            for number in range(options.workers)
        ]
        async with asyncio.TaskGroup() as group:
            for supervisor in supervisors:
                group.create_task(supervisor.run())
                # Many hosts do not start in the same moment, and this process could not follow.
                await asyncio.sleep(_BETWEEN_STARTS_SECONDS)
            await ending.wait()
            # Before they leave: so many goodbyes in one moment are more than this process can say.
            oddities = sum(
                (Counter(supervisor.oddities) for supervisor in supervisors), Counter[str]()
            )
            if oddities:
                print(f"workers of {options.fingerprint}: {dict(oddities)}", file=sys.stderr)
            for supervisor in supervisors:
                supervisor.stopping.set()


def _supervisor(bus: Bus, options: FleetOptions, number: int) -> Supervisor:
    def make_slot(index: int) -> EvaluationSlot:
        return Slot(index, _SLEEPING, _SLOT_BYTES) if options.sleeping else EmptySlot(index)

    return Supervisor(
        bus,
        WorkerOptions(
            f"benchmark-{os.getpid()}-{number}",
            options.slots,
            engine_fingerprint=options.fingerprint,
            heartbeat_seconds=options.heartbeat_seconds,
            hard_limit_seconds=None,
            drain_seconds=0,
        ),
        make_slot=make_slot,
        memory_limit_bytes=_SLOT_BYTES,
    )


if __name__ == "__main__":
    # A thousand workers that warn of the same say it once, in the end.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)
    asyncio.run(_run(TypeAdapter(FleetOptions).validate_json(sys.argv[1])))
