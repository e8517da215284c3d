"""A minute of what `benchmarks/soak.py` does for ten."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.broker import VirtualHost
from support.faults.soak import Soak

SECONDS = 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", [11, 12])
async def test_sweeps_end_exactly_under_random_faults(
    broker_vhost: VirtualHost, tmp_path: Path, seed: int
) -> None:
    soak = Soak(broker_vhost, tmp_path, seed=seed, report=print)
    await soak.run(SECONDS)
    assert soak.tallies.sweeps >= 1
    assert soak.tallies.faults.total() >= 5
