"""A replay that runs longer than the broker lets a consumer hold a message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.broker import BrokerNode, VirtualHost, why_missing
from support.faults.check import check_exact, check_nothing_is_left
from support.faults.fates import Fate, Fates
from support.faults.sweeps import sweeping
from support.faults.workers import Workers

TIMEOUT_SECONDS = 8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_missing() is not None, reason=str(why_missing())),
]


@pytest.fixture
def strict_vhost() -> Iterator[VirtualHost]:
    """A node of its own, which waits only seconds for an acknowledgement."""
    with BrokerNode(consumer_timeout_seconds=TIMEOUT_SECONDS) as node:
        yield VirtualHost(node, "/", node.url())


@pytest.mark.parametrize("slots", [1, 2])
async def test_its_result_counts_all_the_same(
    strict_vhost: VirtualHost, tmp_path: Path, slots: int
) -> None:
    fates = Fates(tmp_path / "fates")
    fates.lay_out(Fate.HOLD)
    async with Workers.open(strict_vhost.url, fates) as workers:
        worker = workers.start(slots=slots, hard_limit_seconds=None)
        async with sweeping(strict_vhost.url, tmp_path) as sweep:
            [held] = await fates.until_held(1)
            lost = await worker.logged("bus.consumer_lost")
            assert "timeout" in lost[0]["why"].lower()
            fates.release()
            result = await sweep.result()
        await check_exact(sweep, result)
        # Whoever gets it again knows the answer, or waits for it.
        assert fates.starts.count(held) == 1
        assert len(fates.starts) == sweep.budget
        await check_nothing_is_left(workers, strict_vhost, "sweep")
