"""Queries over many sweeps, each of them answered by an index.

Conditions that an index is limited to are written out: neither database proves that a value which
is filled in later fulfils them. What the time is goes into a subquery of its own, since PostgreSQL
would ask for it anew for each row, and so read all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Double,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    cast,
    func,
    literal,
    literal_column,
    or_,
    select,
    text,
    union,
    union_all,
)

from spica_async.journal.port import Place
from spica_async.journal.tables import events_table, facts_table, sweeps_table

OVERLAP_SECONDS: Final = 30.0
"""How much later than at its time an event may be there for others to see: no transaction lasts for
as long, and what the clock is set back by is hardly ever more."""

_LATEST_FIRST: Final = (sweeps_table.c.submitted_at.desc(), sweeps_table.c.sweep_id)


def page_of(
    rows: Select[Any],
    statuses: Collection[str] | None,
    *,
    after: Place | None,
    offset: int,
    limit: int | None,
) -> Select[Any]:
    """Some of the sweeps, or of those of some statuses, the latest submitted first."""
    table = sweeps_table.c
    if statuses is not None:
        rows = rows.where(table.status.in_(statuses))
    if after is not None:
        rows = rows.where(
            table.submitted_at <= after.submitted_at,
            or_(table.submitted_at < after.submitted_at, table.sweep_id > after.sweep_id),
        )
    return rows.order_by(*_LATEST_FIRST).offset(offset or None).limit(limit)


def wanted_now(rows: Select[Any], statuses: Collection[str]) -> Select[Any]:
    """The sweeps of some statuses, and those of which something is asked; the latest first."""
    table = sweeps_table.c
    # Not by an `or`: the order could then seem worth reading all of them.
    names = union(
        select(table.sweep_id).where(table.status.in_(statuses)),
        select(table.sweep_id).where(table.requested.is_not(None)),
    )
    return rows.where(table.sweep_id.in_(select(names.subquery().c.sweep_id))).order_by(
        *_LATEST_FIRST
    )


def by_status() -> Select[Any]:
    """How many sweeps there are of each status."""
    table = sweeps_table.c
    return select(table.status, func.count().label("sweeps")).group_by(table.status)


def unpublished() -> Select[Any]:
    """The managed sweeps with events that are not published, the earliest first."""
    table = sweeps_table.c
    return (
        select(table.sweep_id)
        .where(text("published < events AND managed = 1"))
        .order_by(table.submitted_at, table.sweep_id)
    )


def recent_events(since: float | None, now: ColumnElement[float]) -> Any:
    """The first and the last number of each sweep's recent events; in a row without a name, `now`.

    Args:
        since: a time from such a row; None: now.
        now: the database's time.
    """
    table = events_table.c
    began: Any = select(now).scalar_subquery() if since is None else literal(since, Double)
    # By the bare column SQLite would group in the order of the key, and so read all there is.
    name = literal_column("coalesce(sweep_id, '')", Text)
    nothing = cast(literal_column("0"), Integer)
    return union_all(
        select(cast(literal_column("''"), Text), nothing, nothing, now),
        select(
            name,
            func.min(table.number),
            func.max(table.number),
            cast(literal_column("0"), Double),
        )
        .where(table.recorded_at > began - OVERLAP_SECONDS)
        .group_by(name),
    )


def long_ended(
    statuses: Collection[str],
    is_free: ColumnElement[bool],
    now: ColumnElement[float],
    *,
    for_seconds: float,
    limit: int,
) -> Select[Any]:
    """Sweeps of some statuses that nobody runs, and that have no fact of the last so many seconds.

    Only what was submitted before that is looked at, by an index.
    """
    table, facts = sweeps_table.c, facts_table.c
    before = select(now - bindparam("for_seconds", for_seconds, Double)).scalar_subquery()
    latest = (
        select(facts.recorded_at)
        .where(and_(facts.sweep_id == table.sweep_id, facts.number == table.last))
        .scalar_subquery()
    )
    return (
        select(table.sweep_id)
        .where(
            table.status.in_(statuses),
            table.submitted_at < before,
            func.coalesce(latest, table.submitted_at) < before,
            is_free,
        )
        .limit(limit)
    )
