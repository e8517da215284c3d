"""The journal's tables, and how those of older versions become those of this one."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, Double, ForeignKey, Integer, MetaData, Table, Text

from spica_async.storage.opening import Steps

metadata = MetaData()

sweeps_table = Table(
    "sweeps",
    metadata,
    Column("sweep_id", Text, primary_key=True),
    Column("folder", Text, nullable=False),
    Column("config", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("status", Text, nullable=False),
    Column("submitted_at", Double, nullable=False),
    Column("owner", Text),
    Column("lease_until", Double),
    Column("wish", Text, key="requested"),
    Column("last", Integer, nullable=False),
    Column("managed", Integer, nullable=False),
    Column("use_cache", Integer, nullable=False),
    Column("summary", Text, nullable=False),
    Column("events", Integer, nullable=False),
    Column("published", Integer, nullable=False),
    Column("token", Text),
    Column("teller", Text),
    Column("teller_until", Double),
)

events_table = Table(
    "events",
    metadata,
    Column("sweep_id", Text, ForeignKey("sweeps.sweep_id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),
    # None of those from before there was such a column.
    Column("recorded_at", Double),
)

facts_table = Table(
    "facts",
    metadata,
    Column("sweep_id", Text, ForeignKey("sweeps.sweep_id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("recorded_at", Double, nullable=False),
)

version_table = Table(
    "journal_version", metadata, Column("version", Integer, primary_key=True, autoincrement=False)
)

STEPS: Final[Steps] = (
    (
        """
        CREATE TABLE sweeps (
            sweep_id TEXT NOT NULL PRIMARY KEY,
            folder TEXT NOT NULL,
            config TEXT NOT NULL,
            priority INTEGER NOT NULL,
            status TEXT NOT NULL,
            submitted_at DOUBLE PRECISION NOT NULL,
            owner TEXT,
            lease_until DOUBLE PRECISION,
            wish TEXT,
            last INTEGER NOT NULL,
            managed INTEGER NOT NULL,
            use_cache INTEGER NOT NULL,
            summary TEXT NOT NULL,
            events INTEGER NOT NULL,
            published INTEGER NOT NULL
        )
        """,
        """
        CREATE TABLE facts (
            sweep_id TEXT NOT NULL REFERENCES sweeps (sweep_id),
            number INTEGER NOT NULL,
            kind TEXT NOT NULL,
            body TEXT NOT NULL,
            recorded_at DOUBLE PRECISION NOT NULL,
            PRIMARY KEY (sweep_id, number)
        )
        """,
        """
        CREATE TABLE events (
            sweep_id TEXT NOT NULL REFERENCES sweeps (sweep_id),
            number INTEGER NOT NULL,
            body TEXT NOT NULL,
            PRIMARY KEY (sweep_id, number)
        )
        """,
        "CREATE INDEX sweeps_by_status ON sweeps (status)",
    ),
    (
        "ALTER TABLE sweeps ADD COLUMN token TEXT",
        "CREATE UNIQUE INDEX sweeps_by_token ON sweeps (token)",
        "ALTER TABLE sweeps ADD COLUMN teller TEXT",
        "ALTER TABLE sweeps ADD COLUMN teller_until DOUBLE PRECISION",
    ),
    (
        "ALTER TABLE events ADD COLUMN recorded_at DOUBLE PRECISION",
        """
        CREATE INDEX events_by_time ON events (recorded_at, sweep_id, number)
        WHERE recorded_at IS NOT NULL
        """,
        "CREATE INDEX sweeps_by_time ON sweeps (submitted_at DESC, sweep_id)",
        "DROP INDEX sweeps_by_status",
        "CREATE INDEX sweeps_by_status_and_time ON sweeps (status, submitted_at DESC, sweep_id)",
        "CREATE INDEX sweeps_with_a_wish ON sweeps (sweep_id) WHERE wish IS NOT NULL",
        """
        CREATE INDEX sweeps_untold ON sweeps (submitted_at, sweep_id)
        WHERE published < events AND managed = 1
        """,
    ),
)
