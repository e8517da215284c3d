"""Sweeps of one daemon whose traces are all served at one port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import httpx2 as httpx
import pytest
from support.broker import free_port
from support.daemons import QuickInputs, daemon, make_quick, small_config
from support.searching import FakeWorker, succeed_or_fail
from support.trace_loads import load_of

from schemas.config import SmartSearchConfig
from schemas.messages import TraceLoad
from spica_async.bus.address import BrokerAddress
from spica_async.bus.broker_options import BrokerOptions
from spica_async.bus.memory import MemoryBus
from spica_async.config.inputs import Inputs
from spica_async.service.trace_offers import trace_server


async def test_sweeps_side_by_side_serve_their_traces_at_one_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_quick(monkeypatch)

    def with_trace(config: SmartSearchConfig, note: Callable[[str], None]) -> Inputs:
        content = trace_of(config.sweep.random_seed).encode()
        path = tmp_path / f"{config.sweep.random_seed}.jsonl"
        if not path.exists():
            path.write_bytes(content)
        return QuickInputs(config, load_of(content, path=path), 1)

    monkeypatch.setattr("spica_async.service.runner.inputs_of", with_trace)
    address = BrokerAddress.from_options("amqp://127.0.0.1")
    options = BrokerOptions(address, hard_limit_seconds=60, trace_port=free_port())
    bus = MemoryBus()
    gate = asyncio.Semaphore(0)
    worker = FakeWorker(bus, measure=succeed_or_fail, slots=2, gate=gate)
    async with (
        trace_server(options) as server,
        daemon(
            tmp_path / "journal.sqlite3",
            tmp_path,
            bus=bus,
            worker=worker,
            broker=options,
            traces=server,
        ) as run,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        ids = [await run.submit(small_config(random_seed=seed)) for seed in (1, 2)]
        # The first one would end while the second is still planned.
        for sweep_id in ids:
            await run.until(sweep_id, "running")
        async with asyncio.timeout(10):
            while {one.sweep_id for one in worker.requests} != set(ids):
                # The first one may have taken all slots.
                gate.release()
                await asyncio.sleep(0.02)
        for seed, sweep_id in enumerate(ids, 1):
            load = next(one.load for one in worker.requests if one.sweep_id == sweep_id)
            assert await fetched(http, load) == (200, trace_of(seed))
        for _ in range(1000):
            gate.release()
        for sweep_id in ids:
            await run.until(sweep_id, "completed")
        for sweep_id in ids:
            load = next(one.load for one in worker.requests if one.sweep_id == sweep_id)
            # The journal says so before the trace is withdrawn.
            async with asyncio.timeout(10):
                while (await fetched(http, load))[0] != 401:  # noqa: ASYNC110  # it tells nobody
                    await asyncio.sleep(0.02)


def trace_of(seed: int) -> str:
    """A trace of one request."""
    request = {"timestamp": 0, "input_length": 512, "output_length": seed, "hash_ids": [0]}
    return f"{json.dumps(request)}\n"


async def fetched(http: httpx.AsyncClient, load: object) -> tuple[int, str]:
    """What a worker elsewhere is answered."""
    assert isinstance(load, TraceLoad)
    (source,) = load.sources
    assert source.token is not None
    login = {"Authorization": f"Bearer {source.token.get_secret_value()}"}
    answer = await http.get(source.url, headers=login)
    return answer.status_code, answer.text
