"""The daemon as a program: journal, bus, workers, HTTP and commands, until a signal ends it."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import structlog

from spica_async.bus.broker_options import connected
from spica_async.bus.memory import MemoryBus
from spica_async.bus.port import Bus
from spica_async.bus.rabbitmq.state import BusState, OnState
from spica_async.bus.topology import declare, requests_queue
from spica_async.config.submission import LocalFiles
from spica_async.engine.versions import engine_fingerprint
from spica_async.evaluate.cache.opening import cache_place
from spica_async.evaluate.cache.opening import opened as opened_cache
from spica_async.journal.opening import JournalOptions, opened
from spica_async.journal.retiring import keep_retiring
from spica_async.places import make_folder
from spica_async.processes.stopping import Interrupts
from spica_async.service.commands import Commands
from spica_async.service.http.app import make_app
from spica_async.service.http.metrics import Metrics, watched_loop
from spica_async.service.http.server import serve
from spica_async.service.http.settings import HttpSettings
from spica_async.service.local_worker import coordinators_worker
from spica_async.service.manager import SweepManager
from spica_async.service.outbox import Outbox
from spica_async.service.runner import ManagerSettings
from spica_async.service.trace_offers import trace_server
from workers.settings import ChildSettings, default_name

_SWITCH_SECONDS: Final = 0.0001

log = structlog.get_logger(__name__)

Say = Callable[[str], None]
Helper = Callable[[], Coroutine[None, None, None]]


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    """How a daemon is to work.

    Attributes:
        sweeps: how sweeps are run.
        journal: the journal that has the sweeps.
        slots: replays at a time on this machine; 0 for none, with a broker.
        http: the settings of the HTTP server.
        command_files: which files of this host a submission by a command may name.
        keep_days: for how long sweeps that have ended are kept; none: for good.
    """

    sweeps: ManagerSettings
    journal: JournalOptions
    slots: int
    http: HttpSettings
    command_files: LocalFiles
    keep_days: float | None = None


def run_daemon(options: DaemonOptions, say: Say) -> int:
    """Serve until a signal comes.

    The first SIGTERM or SIGINT ends sweeps in good order, to be gone on with by the next daemon;
    a second one ends at once.

    Args:
        options: the options of the daemon.
        say: called with lines for the terminal.

    Returns:
        The exit code: 0 after a first signal, 128 and its number after a second one.

    Raises:
        SpicaError: the journal, the broker or the address cannot be had, or a part of the daemon
            failed.
    """
    interrupts = Interrupts()
    # The loop waits so long for each thread that computes, e.g. reads a trace, time and again.
    sys.setswitchinterval(_SWITCH_SECONDS)
    # What is imported lasts: to look through all of it for cycles holds the loop up for 60 ms.
    gc.freeze()
    return interrupts.run(_run(options, interrupts, say))


async def _run(options: DaemonOptions, interrupts: Interrupts, say: Say) -> None:
    interrupts.listen(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    broker = options.sweeps.broker
    for line in broker.notes if broker is not None else ():
        say(line)
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(opened(options.journal))
        states = _BusStates()
        bus: Bus = MemoryBus()
        traces = None
        if broker is not None:
            own_queues = f"spica.results.{default_name()}"
            connecting = connected(
                broker.address, role="daemon", private_queues=own_queues, on_state=states
            )
            bus = await stack.enter_async_context(connecting)
            # One server for all sweeps: where its port is given, each of them could not have it.
            # Before the slots, so that what is wrong with its address shows at once.
            traces = await stack.enter_async_context(trace_server(broker))
        await declare(bus, requests_queue(engine_fingerprint()))
        if options.slots:
            say(f"starting {options.slots} replay slots")
            output = options.sweeps.output
            children = ChildSettings(log_folder=make_folder(f"--output {output}", output / "logs"))
            worker = coordinators_worker(bus, broker, slots=options.slots, children=children)
            await stack.enter_async_context(worker)
        place = cache_place(options.journal.where)
        cache = await stack.enter_async_context(opened_cache(place))
        settings = replace(options.sweeps, traces=traces)
        manager = SweepManager(journal, bus, cache, settings)
        states.pass_on(manager.runner.on_bus)
        helpers: list[Helper] = []
        outbox = None
        if broker is not None:
            outbox = Outbox(journal, bus, manager.runs)
            manager.on_change = outbox.wake
            source = f"spica/daemon/{socket.gethostname()}"
            helpers += [outbox.run, Commands(bus, manager, source, options.command_files).run]
        if options.keep_days is not None:
            helpers.append(partial(keep_retiring, journal, keep_days=options.keep_days))
        await _serve(options, manager, helpers, interrupts, say)
        if outbox is not None:
            await outbox.publish_last()


class _BusStates:
    """How the bus stands with its broker, for a manager that is yet to be made."""

    def __init__(self) -> None:
        self._last: tuple[BusState, str] | None = None
        self._on_state: OnState | None = None

    def __call__(self, state: BusState, why: str) -> None:
        self._last = state, why
        if self._on_state is not None:
            self._on_state(state, why)

    def pass_on(self, on_state: OnState) -> None:
        """Pass on the latest state, and all that follow."""
        self._on_state = on_state
        if self._last is not None:
            on_state(*self._last)


async def _serve(
    options: DaemonOptions,
    manager: SweepManager,
    helpers: Sequence[Helper],
    interrupts: Interrupts,
    say: Say,
) -> None:
    """Answer requests and run sweeps until a signal ends it, with some tasks beside these."""
    stop = interrupts.stop.requested
    metrics = Metrics()
    app = make_app(manager, options.http, stop, metrics=metrics)
    async with (
        serve(app, options.http, stop) as url,
        watched_loop(metrics.lag.observe),
    ):
        say(f"serving at {url}, with the journal {options.journal.name}")
        async with asyncio.TaskGroup() as group:
            helping = [group.create_task(helper()) for helper in helpers]
            interrupts.stop.ready()
            await manager.run(stop)
            say("all sweeps have stopped")
            for task in helping:
                task.cancel()
