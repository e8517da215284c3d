"""The worker as a program: a bus, a supervisor, and signals that end it.

The first SIGTERM or SIGINT drains: nothing new is taken, what runs may end within the grace, the
rest is given back. A second one stops at once: children are killed and their requests given back.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import structlog

from spica_async.bus.address import BrokerAddress
from spica_async.bus.port import Bus
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.rabbitmq.state import BusState
from spica_async.bus.topology import declare, requests_queue
from spica_async.processes.stopping import Interrupts
from workers.settings import WorkerOptions
from workers.supervisor import Supervisor

log = structlog.get_logger(__name__)


def run_program(address: BrokerAddress, options: WorkerOptions) -> int:
    """Work for this broker until a signal comes.

    Returns:
        The exit code: 0 after a first signal, 128 and its number after a second one.

    Raises:
        SpicaError: the broker cannot be reached or refuses, or no child can be started.
    """
    interrupts = Interrupts()
    return interrupts.run(_work(address, options, interrupts))


async def run_worker(bus: Bus, options: WorkerOptions, stop: asyncio.Event) -> None:
    """Work for this bus until `stop` is set, and then drain; to cancel it stops at once.

    Raises:
        BusError: the queues are not there and may not be declared, or the bus is away.
        ExceptionGroup: as `Supervisor.run`.
    """
    await declare(bus, requests_queue(options.engine_fingerprint))
    await Supervisor(bus, options, stopping=stop).run()


async def _work(address: BrokerAddress, options: WorkerOptions, interrupts: Interrupts) -> None:
    interrupts.listen(signal.SIGTERM, signal.SIGINT)
    async with RabbitBus.open(
        address,
        name=f"spica-worker-{socket.gethostname()}-{os.getpid()}",
        private_queues=f"spica.worker.{options.name}",
        on_state=_log_state,
    ) as bus:
        interrupts.stop.ready()
        await run_worker(bus, options, interrupts.stop.requested)


def _log_state(state: BusState, why: str) -> None:
    if state is BusState.CONNECTED:
        log.info("worker.bus", state=state.value)
    else:
        log.warning("worker.bus", state=state.value, why=why)
