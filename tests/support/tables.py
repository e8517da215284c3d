"""What tables a database has."""

from __future__ import annotations

from sqlalchemy import Connection, inspect


def look_at(connection: Connection) -> dict[str, list[tuple[str, bool, bool]]]:
    """Name, whether it may be null and whether it is in the key, for each column of each table."""
    inspector = inspect(connection)
    return {
        name: [
            (
                column["name"],
                column["nullable"],
                column["name"] in inspector.get_pk_constraint(name)["constrained_columns"],
            )
            for column in inspector.get_columns(name)
        ]
        for name in inspector.get_table_names()
    }
