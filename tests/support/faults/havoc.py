"""All that can be done to a sweep over a real broker."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import aio_pika
from aio_pika.exceptions import AMQPException
from aiormq.exceptions import AMQPError
from support.broker import VirtualHost
from support.faults.channels import break_channels
from support.faults.fates import Fate, Fates
from support.faults.litter import Fuzzer, Litterer, garbage, publish_undecodable
from support.faults.sweeps import RunningSweep
from support.faults.workers import FINGERPRINT, WorkerProcess, Workers
from support.proxy import TcpProxy

from spica_async.bus.topology import DEAD_QUEUE, requests_queue, results_queue

HEARTBEAT_SECONDS: Final = 2
"""Of the broker's connections: what is silent for twice as long is given up."""
LITTERING: Final = frozenset({"garbage", "undecodable"})
"""Faults that may leave dead letters to the next coordinator."""
_MOST_WORKERS: Final = 4
_FUZZED: Final = 40

Fault = Callable[[], Awaitable[None]]


class Havoc:
    """One sweep with all that can be done to it."""

    def __init__(
        self,
        vhost: VirtualHost,
        sweep: RunningSweep,
        workers: Workers,
        fates: Fates,
        *,
        proxies: tuple[TcpProxy, TcpProxy],
        random: random.Random,
        fuzzer: Fuzzer,
    ) -> None:
        self.sweep = sweep
        self._vhost = vhost
        self._node = vhost.node
        self._workers = workers
        self._fates = fates
        self._proxies = proxies
        self._random = random
        self._fuzzer = fuzzer
        self._paused: set[WorkerProcess] = set()
        # How often relative to others: what takes seconds less often than what takes none.
        self._faults: dict[str, tuple[int, Fault]] = {
            "worker-killed": (6, self._kill_worker),
            "all-workers-killed": (2, self._kill_all_workers),
            "child-killed": (6, self._kill_child),
            "worker-leaves": (4, self._leave),
            "worker-joins": (4, self._join),
            "worker-paused": (4, self._pause_worker),
            "poison": (3, self._poison),
            "broker-killed": (1, self._kill_broker),
            "broker-stopped": (1, self._stop_broker),
            "connections-cut": (5, self._cut),
            "connections-closed": (3, self._close_connections),
            "channels-broken": (4, self._break_channels),
            "stalled": (3, self._stall),
            "memory-alarm": (3, self._alarm),
            "requests-deleted": (3, lambda: self._delete(requests_queue(FINGERPRINT).name)),
            "results-deleted": (3, lambda: self._delete(results_queue(sweep.sweep_id).name)),
            "dead-letters-deleted": (2, lambda: self._delete(DEAD_QUEUE.name)),
            "garbage": (4, self._litter),
            "undecodable": (2, self._litter_undecodable),
        }

    def draw(self) -> str:
        """The kind of the next fault."""
        weights = [weight for weight, _ in self._faults.values()]
        return self._random.choices(list(self._faults), weights)[0]

    async def throw(self, kind: str) -> None:
        """Let it happen; there are workers afterwards."""
        _, fault = self._faults[kind]
        await fault()
        if not self._at_work:
            self.join()

    async def mend(self) -> None:
        """Take back what would keep the sweep from its end."""
        for worker in self._paused:
            if worker.exit_code is None:
                worker.signal(signal.SIGCONT)
        self._paused.clear()
        for proxy in self._proxies:
            proxy.resume()
        await asyncio.to_thread(self._node.recover)
        if not self._at_work:
            self.join()

    def join(self) -> None:
        """One worker more."""
        self._workers.start(slots=2, drain_seconds=self._random.choice((0.0, 30.0)))

    @property
    def _at_work(self) -> list[WorkerProcess]:
        return [worker for worker in self._workers.running if worker not in self._paused]

    async def _join(self) -> None:
        if len(self._workers.running) < _MOST_WORKERS:
            self.join()

    async def _leave(self) -> None:
        for worker in self._some_worker():
            await worker.terminate()
            # It counts as running until its drain has ended: another one takes its place.
            await self._join()

    async def _kill_worker(self) -> None:
        for worker in self._some_worker():
            worker.signal(signal.SIGKILL)
            await worker.ended()

    async def _kill_all_workers(self) -> None:
        for worker in self._workers.running:
            worker.signal(signal.SIGKILL)
        await asyncio.sleep(self._random.uniform(0, 2))

    async def _kill_child(self) -> None:
        running = self._fates.running
        if running:
            with suppress(ProcessLookupError):
                os.kill(self._random.choice(running).child_pid, signal.SIGKILL)

    async def _pause_worker(self) -> None:
        for worker in self._some_worker():
            worker.signal(signal.SIGSTOP)
            self._paused.add(worker)
            if not self._at_work:
                self.join()
            await asyncio.sleep(self._random.uniform(1, 4 * HEARTBEAT_SECONDS))
            worker.signal(signal.SIGCONT)
            self._paused.discard(worker)

    async def _poison(self) -> None:
        self._fates.lay_out(Fate.KILL_CHILD)

    async def _kill_broker(self) -> None:
        await asyncio.to_thread(self._node.kill)
        await asyncio.to_thread(self._node.start)

    async def _stop_broker(self) -> None:
        await asyncio.to_thread(self._node.stop)
        await asyncio.to_thread(self._node.start)

    async def _cut(self) -> None:
        self._random.choice(self._proxies).cut()

    async def _close_connections(self) -> None:
        await asyncio.to_thread(self._node.close_connections, self._someones_connections())

    async def _break_channels(self) -> None:
        await asyncio.to_thread(break_channels, self._node, self._someones_connections())

    async def _stall(self) -> None:
        proxy = self._random.choice(self._proxies)
        proxy.stall()
        await asyncio.sleep(self._random.uniform(0.5, 4 * HEARTBEAT_SECONDS))
        if self._random.random() < 0.5:
            proxy.cut()
        proxy.resume()

    async def _alarm(self) -> None:
        await asyncio.to_thread(self._node.set_memory_alarm, on=True)
        await asyncio.sleep(self._random.uniform(0.2, 5))
        await asyncio.to_thread(self._node.set_memory_alarm, on=False)

    async def _delete(self, queue: str) -> None:
        async with await aio_pika.connect(self._vhost.url) as connection:
            channel = await connection.channel()
            await channel.queue_delete(queue)

    async def _litter(self) -> None:
        try:
            async with Litterer.open(self._vhost, self.sweep.sweep_id) as litterer:
                for put, fuzzed in (
                    (litterer.control, self._fuzzer.control),
                    (litterer.events, self._fuzzer.events),
                    (litterer.dead_letters, self._fuzzer.dead_letters),
                    (litterer.results, self._fuzzer.results),
                    (litterer.requests, self._fuzzer.requests),
                ):
                    await put(fuzzed(_FUZZED))
                    await put(garbage("stranger.v1"))
        except* (AMQPException, AMQPError):
            pass  # A queue was deleted just then: there is that much less to read.

    async def _litter_undecodable(self) -> None:
        queue = self._random.choice(
            (
                requests_queue(FINGERPRINT).name,
                results_queue(self.sweep.sweep_id).name,
                DEAD_QUEUE.name,
            )
        )
        await asyncio.to_thread(publish_undecodable, self._vhost, queue)

    def _some_worker(self) -> list[WorkerProcess]:
        """One of those that run, if any does."""
        running = self._at_work
        return [self._random.choice(running)] if running else []

    def _someones_connections(self) -> str:
        return self._random.choice(("spica-coordinator", "spica-worker"))
