"""Journals with very many sweeps, and what a statement reads of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import event

from spica_async.journal.sql import SqlJournal
from spica_async.storage.address import FileAddress, read_address

_COLUMNS = (
    "sweep_id, folder, config, priority, status, submitted_at, last, managed, use_cache, summary,"
    " events, published"
)
_VALUES = (
    "'sweep-' || n, '/results/' || n, '{config}', 0, 'completed', {first} + n, 1, 1, 1,"
    " '{summary}', 1, 1"
)
_NUMBERS = {
    "sqlite": "WITH RECURSIVE numbers (n) AS"
    " (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})",
    "postgresql": "WITH numbers (n) AS (SELECT * FROM generate_series(1, {count}))",
}
_PARTS = (
    f"INSERT INTO sweeps ({_COLUMNS}) {{numbers}} SELECT {_VALUES} FROM numbers",
    """
    INSERT INTO facts (sweep_id, number, kind, body, recorded_at) {numbers}
    SELECT 'sweep-' || n, 1, 'ended', '{{}}', {first} + n FROM numbers
    """,
    """
    INSERT INTO events (sweep_id, number, body, recorded_at) {numbers}
    SELECT 'sweep-' || n, 1, '{{}}', {first} + n FROM numbers
    """,
)


async def add_ended(
    journal: SqlJournal, count: int, *, first: float, config: str = "{}", summary: str = "{}"
) -> None:
    """Add completed sweeps, `sweep-1` and on, each with an event and a fact.

    Args:
        journal: to add them to.
        count: how many.
        first: when the first was submitted; each of the others came a second later.
        config: of each.
        summary: of each.
    """
    engine = journal.database.engine
    numbers = _NUMBERS[engine.dialect.name].format(count=count)
    parts = [
        part.format(numbers=numbers, first=first, config=config, summary=summary) for part in _PARTS
    ]

    def fill(connection: Any) -> None:
        for part in parts:
            connection.exec_driver_sql(part)

    await journal.database.write(fill)
    if engine.dialect.name == "postgresql":
        # As a server does by itself before long; nobody does that for a file.
        await journal.database.read(lambda connection: connection.exec_driver_sql("VACUUM ANALYZE"))


async def rows_read(journal: SqlJournal, where: str, ask: Callable[[], Awaitable[Any]]) -> int:
    """How many rows of tables and indexes a verb's statements come by, about.

    SQLite counts its steps, a few to each row.
    """
    statements: list[tuple[str, Any]] = []

    def keep(_c: Any, _cursor: Any, statement: str, values: Any, *_: Any) -> None:
        statements.append((statement, values))

    event.listen(journal.database.engine, "before_cursor_execute", keep)
    try:
        await ask()
    finally:
        event.remove(journal.database.engine, "before_cursor_execute", keep)
    assert statements
    address = read_address(where)
    if isinstance(address, FileAddress):
        return sum(_sqlite_steps(address, *one) for one in statements)

    def explain(connection: Any) -> int:
        return sum(
            _postgres_rows(
                connection.exec_driver_sql(f"EXPLAIN (ANALYZE, FORMAT JSON) {one}", values)
            )
            for one, values in statements
        )

    return await journal.database.read(explain)


def _sqlite_steps(address: FileAddress, statement: str, values: Any) -> int:
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 10
        return 0

    connection = sqlite3.connect(address.path)
    connection.set_progress_handler(count, 10)
    connection.execute(statement, values).fetchall()
    connection.close()
    return steps


def _postgres_rows(answer: Any) -> int:
    document = answer.scalar_one()
    (plan,) = json.loads(document) if isinstance(document, str) else document
    waiting, rows = [plan["Plan"]], 0
    while waiting:
        node = waiting.pop()
        waiting += node.get("Plans", [])
        if "Scan" in node["Node Type"]:
            read = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            rows += round(read * node["Actual Loops"])
    return rows
