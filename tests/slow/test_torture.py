"""A hundred kills of coordinators, workers and the broker in one sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.broker import BrokerNode
from support.killing.torture import torture

from spica_async.storage.address import sqlite_url

pytestmark = pytest.mark.slow


async def test_a_hundred_kills_change_nothing(broker: BrokerNode, tmp_path: Path) -> None:
    broker.recover()
    figures = await torture(
        broker,
        tmp_path,
        sqlite_url(tmp_path / "journal.sqlite3"),
        seed=1,
        kills=100,
        per_branch=200,
    )
    assert figures.kills.total() >= 100
    assert set(figures.kills) == {"coordinator", "worker", "broker"}
