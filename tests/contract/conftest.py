"""The databases that journals and caches have to do with."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.postgres import OpensTables, PostgresNode

from spica_async.storage.address import sqlite_url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database without tables."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "kept.sqlite3")
    node: PostgresNode = request.getfixturevalue("postgres")
    return node.url(node.add_database())


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path, opens_tables: OpensTables) -> str:
    """Of a database in which nothing is kept; on a server it has its tables."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "kept.sqlite3")
    node: PostgresNode = request.getfixturevalue("postgres")
    return node.url(node.emptied_database(opens_tables))
