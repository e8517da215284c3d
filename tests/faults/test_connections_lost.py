"""Connections and channels that end at the worst moment of a sweep."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.broker import VirtualHost
from support.faults.channels import break_channels
from support.faults.check import check_exact, check_nothing_is_left
from support.faults.fates import Fate, Fates, until
from support.faults.sweeps import sweeping
from support.faults.workers import Workers
from support.proxy import Method, Side, TcpProxy

from spica_async.bus.rabbitmq.state import BusState

Moments = Sequence[tuple[Side, tuple[int, int]]]
"""Connections are cut right before one side sends such a method."""

COORDINATORS = {
    "before-a-request-is-published": (Side.CLIENT, Method.BASIC_PUBLISH),
    "before-a-request-is-confirmed": (Side.SERVER, Method.BASIC_ACK),
    "before-a-result-is-delivered": (Side.SERVER, Method.BASIC_DELIVER),
    "before-a-result-is-acknowledged": (Side.CLIENT, Method.BASIC_ACK),
}
WORKERS = {
    "before-a-request-is-delivered": (Side.SERVER, Method.BASIC_DELIVER),
    "before-a-result-is-published": (Side.CLIENT, Method.BASIC_PUBLISH),
    "between-result-and-confirm": (Side.SERVER, Method.BASIC_ACK),
    "between-result-and-ack": (Side.CLIENT, Method.BASIC_ACK),
}


def at_each(moments: dict[str, tuple[Side, tuple[int, int]]]) -> pytest.MarkDecorator:
    """All moments in one sweep, twice each; and in slow tests each alone, four times."""
    alone = [pytest.param([m], 4, id=name, marks=pytest.mark.slow) for name, m in moments.items()]
    together = pytest.param(list(moments.values()), 2, id="at-all-moments")
    return pytest.mark.parametrize(("moments", "times"), [together, *alone])


def cut_at(proxy: TcpProxy, moments: Moments, times: int) -> list[asyncio.Event]:
    """The events are set when it has happened, each moment so many times."""
    return [
        proxy.cut_before(side, method, occurrence=number)
        for side, method in moments
        for number in range(1, times + 1)
    ]


class TestCoordinatorsConnection:
    @at_each(COORDINATORS)
    async def test_is_cut(
        self,
        *,
        broker_vhost: VirtualHost,
        proxy: TcpProxy,
        workers: Workers,
        tmp_path: Path,
        moments: Moments,
        times: int,
    ) -> None:
        workers.start()
        async with sweeping(proxy.url(broker_vhost.url), tmp_path) as sweep:
            await sweep.found(3)
            cuts = cut_at(proxy, moments, times)
            result = await sweep.result()
        assert all(cut.is_set() for cut in cuts)
        await check_exact(sweep, result)
        await check_nothing_is_left(workers, broker_vhost, "sweep")

    async def test_is_stalled_past_its_heartbeat(
        self,
        broker_vhost: VirtualHost,
        proxy: TcpProxy,
        workers: Workers,
        fates: Fates,
        tmp_path: Path,
    ) -> None:
        fates.lay_out(Fate.HOLD, 2)
        workers.start()
        async with sweeping(f"{proxy.url(broker_vhost.url)}?heartbeat=1", tmp_path) as sweep:
            await fates.until_held(2)
            proxy.stall()
            fates.release()
            await until(lambda: sweep.states[-1] is BusState.CONNECTING, "it is given up")
            assert sweep.records == []
            proxy.cut()
            proxy.resume()
            result = await sweep.result()
        await check_exact(sweep, result)
        await check_nothing_is_left(workers, broker_vhost, "sweep")


class TestWorkersConnection:
    @at_each(WORKERS)
    async def test_is_cut(
        self,
        *,
        broker_vhost: VirtualHost,
        proxy: TcpProxy,
        workers: Workers,
        fates: Fates,
        tmp_path: Path,
        moments: Moments,
        times: int,
    ) -> None:
        workers.start(url=proxy.url(broker_vhost.url), heartbeat_seconds=60)
        async with sweeping(broker_vhost.url, tmp_path) as sweep:
            await sweep.found(3)
            cuts = cut_at(proxy, moments, times)
            result = await sweep.result()
        await check_exact(sweep, result)
        assert all(cut.is_set() for cut in cuts)
        # It remembers what it has evaluated.
        assert len(fates.starts) == sweep.budget
        await check_nothing_is_left(workers, broker_vhost, "sweep")

    async def test_is_stalled_past_its_heartbeat(
        self,
        broker_vhost: VirtualHost,
        proxy: TcpProxy,
        workers: Workers,
        fates: Fates,
        tmp_path: Path,
    ) -> None:
        fates.lay_out(Fate.HOLD, 2)
        stalled = workers.start(url=f"{proxy.url(broker_vhost.url)}?heartbeat=1")
        async with sweeping(broker_vhost.url, tmp_path) as sweep:
            held = await fates.until_held(2)
            proxy.stall()
            workers.start()
            # The broker gives its requests to others, who hold them too.
            await fates.until_held(4)
            fates.release()
            await sweep.found(4)
            proxy.cut()
            proxy.resume()
            result = await sweep.result()
        await check_exact(sweep, result)
        assert {start.worker_pid for start in held} == {stalled.pid}
        await check_nothing_is_left(workers, broker_vhost, "sweep")


@pytest.mark.parametrize("whose", ["spica-coordinator", "spica-worker"])
async def test_channels_are_closed_by_an_error(
    *,
    broker_vhost: VirtualHost,
    workers: Workers,
    fates: Fates,
    tmp_path: Path,
    whose: str,
) -> None:
    fates.lay_out(Fate.HOLD, 2)
    workers.start()
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        await fates.until_held(2)
        broken = await asyncio.to_thread(break_channels, broker_vhost.node, whose)
        assert broken >= 3
        fates.release()
        await sweep.found(6)
        await asyncio.to_thread(break_channels, broker_vhost.node, whose)
        result = await sweep.result()
    await check_exact(sweep, result)
    assert len(fates.starts) == sweep.budget
    await check_nothing_is_left(workers, broker_vhost, "sweep")


async def test_an_operator_closes_all_connections(
    broker_vhost: VirtualHost, workers: Workers, fates: Fates, tmp_path: Path
) -> None:
    fates.lay_out(Fate.HOLD, 2)
    workers.start()
    async with sweeping(broker_vhost.url, tmp_path) as sweep:
        await fates.until_held(2)
        assert await asyncio.to_thread(broker_vhost.node.close_connections, "spica-") >= 4
        fates.release()
        result = await sweep.result()
    await check_exact(sweep, result)
    assert len(fates.starts) == sweep.budget
    await check_nothing_is_left(workers, broker_vhost, "sweep")
