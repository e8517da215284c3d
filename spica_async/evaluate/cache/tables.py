"""The cache's tables, and how those of older versions become those of this one."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Double, ForeignKey, Integer, MetaData, Table, Text

from spica_async.storage.opening import Steps

metadata = MetaData()

entries_table = Table(
    "result_cache_entries",
    metadata,
    Column("key", Text, primary_key=True),
    Column("noisy", Integer, nullable=False),
    Column("measured", Integer, nullable=False),
    # Of all its measurements.
    Column("bytes", Integer, nullable=False),
    Column("hits", Integer, nullable=False),
    Column("used_at", Double, nullable=False),
)

# Apart from the entries, which are all read to find those to forget.
measurements_table = Table(
    "result_cache_measurements",
    metadata,
    Column(
        "key", Text, ForeignKey("result_cache_entries.key", ondelete="CASCADE"), primary_key=True
    ),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
    Column("bytes", Integer, nullable=False),
    Column("worker", Text, nullable=False),
    Column("measured_at", Double, nullable=False),
)

# Not the journal's, which may be in the same database.
version_table = Table(
    "result_cache_version",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
)

STEPS: Final[Steps] = (
    (
        """
        CREATE TABLE result_cache_entries (
            key TEXT NOT NULL PRIMARY KEY,
            noisy INTEGER NOT NULL,
            measured INTEGER NOT NULL,
            bytes INTEGER NOT NULL,
            hits INTEGER NOT NULL,
            used_at DOUBLE PRECISION NOT NULL
        )
        """,
        """
        CREATE TABLE result_cache_measurements (
            key TEXT NOT NULL REFERENCES result_cache_entries (key) ON DELETE CASCADE,
            number INTEGER NOT NULL,
            body TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            worker TEXT NOT NULL,
            measured_at DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (key, number)
        )
        """,
    ),
)
