"""The journal in SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    case,
    delete,
    func,
    insert,
    literal,
    null,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from spica_async.journal import queries
from spica_async.journal.port import (
    WISHES,
    Fact,
    JournalConflictError,
    JournalDamagedError,
    Lease,
    LeaseLostError,
    News,
    NewSweep,
    Place,
    RecentEvents,
    RecordedEvent,
    RecordedFact,
    SweepExistsError,
    SweepRow,
    SweepTakenError,
    SweepUnknownError,
    granted_by,
)
from spica_async.journal.tables import (
    STEPS,
    events_table,
    facts_table,
    sweeps_table,
    version_table,
)
from spica_async.processes.threads import with_files
from spica_async.storage.database import Database
from spica_async.storage.set_up import database_at, set_up
from spica_async.storage.transactions import Transactions

BUSY_SECONDS: Final = 10.0
"""How long others may hold what a verb needs."""

_PAGE: Final = 1000
_ABSURD_SECONDS: Final = 3600.0


class SqlJournal:
    """A journal in a database; see `Journal` for its verbs."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._do = Transactions(database)

    @classmethod
    @asynccontextmanager
    async def open(
        cls, where: str | Path, *, busy_seconds: float = BUSY_SECONDS
    ) -> AsyncIterator[SqlJournal]:
        """Open a journal, with its tables made or brought up to date.

        Args:
            where: See `read_address`; a file that is missing is made, with its folder.
            busy_seconds: How long to wait for what others hold.

        Raises:
            InputError: if it names no journal.
            JournalVersionError: if a newer version has written it.
            JournalError: if it cannot be opened.
        """
        database = database_at(where, busy_seconds)
        journal = cls(database)
        try:
            await with_files(database.prepare)
            await set_up(database, journal._do, STEPS, version_table, busy_seconds)
            yield journal
        finally:
            await database.dispose()

    async def check_writable(self) -> None:
        """See `Journal.check_writable`."""
        same = update(version_table).values(version=version_table.c.version)
        await self._do.write(lambda connection: connection.execute(same).close())

    async def create(self, sweep: NewSweep, lease: Lease | None = None) -> None:
        """See `Journal.create`."""

        def work(connection: Connection) -> None:
            now = self._database.now()
            row = insert(sweeps_table).values(
                sweep_id=sweep.sweep_id,
                folder=sweep.folder,
                config=sweep.config,
                priority=sweep.priority,
                status="queued" if lease is None else "running",
                submitted_at=now,
                owner=None if lease is None else lease.owner,
                lease_until=null() if lease is None else now + lease.seconds,
                last=0,
                managed=int(sweep.managed),
                use_cache=int(sweep.use_cache),
                summary=sweep.summary,
                events=len(sweep.events),
                published=0,
                token=sweep.token,
            )
            try:
                connection.execute(row)
                self._insert_events(connection, sweep.sweep_id, sweep.events, 0)
            except IntegrityError as error:
                raise SweepExistsError(f"there is a sweep {sweep.sweep_id} already") from error

        await self._do.write(work)

    async def submitted_as(self, token: str) -> str | None:
        """See `Journal.submitted_as`."""

        def work(connection: Connection) -> str | None:
            table = sweeps_table.c
            found = connection.execute(select(table.sweep_id).where(table.token == token))
            return found.scalar_one_or_none()

        return await self._do.read(work)

    async def sweep(self, sweep_id: str) -> SweepRow:
        """See `Journal.sweep`."""
        return await self._do.read(lambda connection: self._sweep(connection, sweep_id))

    async def sweeps(
        self,
        statuses: Collection[str] | None = None,
        *,
        after: Place | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> list[SweepRow]:
        """See `Journal.sweeps`."""

        def work(connection: Connection) -> list[SweepRow]:
            rows = self._rows(literal(""))
            wanted = queries.page_of(rows, statuses, after=after, offset=offset, limit=limit)
            return [_sweep_row(row) for row in connection.execute(wanted)]

        return await self._do.read(work)

    async def wanted(self, statuses: Collection[str]) -> list[SweepRow]:
        """See `Journal.wanted`."""

        def work(connection: Connection) -> list[SweepRow]:
            wanted = queries.wanted_now(self._rows(literal("")), statuses)
            return [_sweep_row(row) for row in connection.execute(wanted)]

        return await self._do.read(work)

    async def counts(self) -> dict[str, int]:
        """See `Journal.counts`."""

        def work(connection: Connection) -> dict[str, int]:
            found = connection.execute(queries.by_status())
            return {row[0]: row[1] for row in found}

        return await self._do.read(work)

    async def recent_events(self, since: float | None = None) -> RecentEvents:
        """See `Journal.recent_events`."""

        def work(connection: Connection) -> RecentEvents:
            found = connection.execute(queries.recent_events(since, self._database.now())).all()
            at = next(at for sweep_id, _, _, at in found if not sweep_id)
            numbers = {name: (first, last) for name, first, last, _ in found if name}
            return RecentEvents(at, numbers)

        return await self._do.read(work)

    async def long_ended(
        self, statuses: Collection[str], *, for_seconds: float, limit: int
    ) -> list[str]:
        """See `Journal.long_ended`."""

        def work(connection: Connection) -> list[str]:
            wanted = queries.long_ended(
                statuses,
                self._is_free(),
                self._database.now(),
                for_seconds=for_seconds,
                limit=limit,
            )
            return list(connection.execute(wanted).scalars())

        return await self._do.read(work)

    async def take(self, sweep_id: str, lease: Lease, *, instead_of: str | None = None) -> int:
        """See `Journal.take`."""

        def work(connection: Connection) -> int:
            table = sweeps_table.c
            now = self._database.now()
            is_ours = table.owner.in_([lease.owner, instead_of or lease.owner])
            taken = connection.execute(
                update(sweeps_table)
                .where(table.sweep_id == sweep_id, self._is_free() | is_ours)
                .values(owner=lease.owner, lease_until=now + lease.seconds)
                .returning(table.last)
            )
            last: int | None = taken.scalar_one_or_none()
            if last is None:
                raise self._taken_error(connection, sweep_id)
            return last

        return await self._do.write(work)

    async def give_back(self, sweep_id: str, owner: str) -> None:
        """See `Journal.give_back`."""

        def work(connection: Connection) -> None:
            table = sweeps_table.c
            connection.execute(
                update(sweeps_table)
                .where(table.sweep_id == sweep_id, table.owner == owner)
                .values(owner=None, lease_until=None)
            )

        await self._do.write(work)

    async def wish(self, sweep_id: str, wish: str) -> bool:
        """See `Journal.wish`."""

        def work(connection: Connection) -> bool:
            table = sweeps_table.c
            is_cancelled = table.wish == "cancel"
            asked = connection.execute(
                update(sweeps_table)
                .where(table.sweep_id == sweep_id, table.status.in_(["queued", "running"]))
                .values(wish=case((is_cancelled, table.wish), else_=wish))
            )
            if asked.rowcount == 0:
                self._sweep(connection, sweep_id)
            return asked.rowcount == 1

        return await self._do.write(work)

    async def remove(self, sweep_id: str, *, only_from: Collection[str] | None = None) -> bool:
        """See `Journal.remove`."""

        def work(connection: Connection) -> bool:
            table = sweeps_table.c
            # First, so that whoever takes it meanwhile waits, and then finds none.
            freed = connection.execute(
                update(sweeps_table)
                .where(table.sweep_id == sweep_id, self._is_free())
                .values(owner=None, lease_until=None)
                .returning(table.status)
            )
            status: str | None = freed.scalar_one_or_none()
            if status is None:
                raise self._taken_error(connection, sweep_id)
            if only_from is not None and status not in only_from:
                return False
            for part in (facts_table, events_table, sweeps_table):
                connection.execute(delete(part).where(part.c.sweep_id == sweep_id))
            return True

        return await self._do.write(work)

    async def append(
        self,
        sweep_id: str,
        owner: str,
        facts: Sequence[Fact],
        *,
        after: int,
        news: News | None = None,
    ) -> int:
        """See `Journal.append`."""
        news = news or News()
        last, last_event = after + len(facts), news.events_after + len(news.events)

        def work(connection: Connection) -> None:
            table = sweeps_table.c
            is_ours = (
                table.sweep_id == sweep_id,
                table.owner == owner,
                table.lease_until > self._database.now(),
            )
            as_expected = [table.last == after]
            values = {"last": last, **_new_values(news)}
            if news.events:
                as_expected.append(table.events == news.events_after)
                values["events"] = last_event
            counted = connection.execute(
                update(sweeps_table).where(*is_ours, *as_expected).values(**values)
            )
            if counted.rowcount == 1:
                self._insert(connection, sweep_id, facts, after)
                self._insert_events(connection, sweep_id, news.events, news.events_after)
                return
            found = connection.execute(
                select(table.last, table.status, table.events).where(*is_ours)
            )
            row = found.one_or_none()
            if row is None:
                raise LeaseLostError(f"sweep {sweep_id} is not run by {owner} any more")
            as_asked = (
                row.last == last
                and news.status in (None, row.status)
                and (row.events == last_event or not news.events)
            )
            if not (as_asked and self._stand(connection, sweep_id, facts, after)):
                raise JournalConflictError(
                    f"sweep {sweep_id}: somebody else has written, for its latest fact is "
                    f"{row.last} and was {after}"
                )

        await self._do.write(work)
        return last

    async def facts(self, sweep_id: str, after: int = 0) -> AsyncIterator[RecordedFact]:
        """See `Journal.facts`."""
        while True:
            page = await self._do.read(partial(self._page, sweep_id=sweep_id, after=after))
            for recorded in page:
                if recorded.number != after + 1:
                    raise JournalDamagedError(
                        f"journal {self._database.name}: sweep {sweep_id} has no fact {after + 1}"
                    )
                yield recorded
                after = recorded.number
            if len(page) < _PAGE:
                return

    async def latest(
        self, sweep_id: str, kinds: Collection[str], *, after: int = 0
    ) -> RecordedFact | None:
        """See `Journal.latest`."""

        def work(connection: Connection) -> RecordedFact | None:
            table = facts_table.c
            found = connection.execute(
                select(table.number, table.recorded_at, table.kind, table.body)
                .where(table.sweep_id == sweep_id, table.number > after, table.kind.in_(kinds))
                .order_by(table.number.desc())
                .limit(1)
            )
            row = found.one_or_none()
            if row is None:
                return None
            return RecordedFact(row.number, row.recorded_at, Fact(row.kind, row.body))

        return await self._do.read(work)

    async def events(self, sweep_id: str, after: int = 0) -> AsyncIterator[RecordedEvent]:
        """See `Journal.events`."""
        while True:
            page = await self._do.read(partial(self._events_page, sweep_id=sweep_id, after=after))
            for recorded in page:
                yield recorded
                after = recorded.number
            if len(page) < _PAGE:
                return

    async def unpublished(self) -> list[str]:
        """See `Journal.unpublished`."""

        def work(connection: Connection) -> list[str]:
            return list(connection.execute(queries.untold()).scalars())

        return await self._do.read(work)

    async def published(self, sweep_id: str, number: int) -> None:
        """See `Journal.published`."""

        def work(connection: Connection) -> None:
            table = sweeps_table.c
            connection.execute(
                update(sweeps_table)
                .where(table.sweep_id == sweep_id, table.published < number)
                .values(published=number)
            )

        await self._do.write(work)

    async def begin_telling(self, sweep_id: str, lease: Lease) -> bool:
        """See `Journal.begin_telling`."""

        def work(connection: Connection) -> bool:
            table = sweeps_table.c
            now = self._database.now()
            is_free = table.teller.is_(None) | (table.teller_until <= now)
            begun = connection.execute(
                update(sweeps_table)
                .where(table.sweep_id == sweep_id, is_free | (table.teller == lease.owner))
                .values(teller=lease.owner, teller_until=now + lease.seconds)
            )
            return begun.rowcount == 1

        return await self._do.write(work)

    async def end_telling(self, sweep_id: str, owner: str) -> None:
        """See `Journal.end_telling`."""

        def work(connection: Connection) -> None:
            table = sweeps_table.c
            connection.execute(
                update(sweeps_table)
                .where(table.sweep_id == sweep_id, table.teller == owner)
                .values(teller=None, teller_until=None)
            )

        await self._do.write(work)

    def _is_free(self) -> ColumnElement[bool]:
        """Whether nobody runs a sweep."""
        table, now = sweeps_table.c, self._database.now()
        # No lease is that long: it was written when the clock was wrong.
        is_absurd = table.lease_until > now + _ABSURD_SECONDS
        return table.owner.is_(None) | (table.lease_until <= now) | is_absurd

    def _taken_error(self, connection: Connection, sweep_id: str) -> SweepTakenError:
        """What whoever cannot have a sweep is told.

        Raises:
            SweepUnknownError: there is none of that name.
        """
        row = self._sweep(connection, sweep_id)
        return SweepTakenError(sweep_id, row.owner or "somebody", row.lease_seconds)

    def _insert(
        self, connection: Connection, sweep_id: str, facts: Sequence[Fact], after: int
    ) -> None:
        if facts:
            connection.execute(
                insert(facts_table).values(recorded_at=self._database.now()),
                [
                    {"sweep_id": sweep_id, "number": number, "kind": fact.kind, "body": fact.body}
                    for number, fact in enumerate(facts, after + 1)
                ],
            )

    def _insert_events(
        self, connection: Connection, sweep_id: str, events: Sequence[str], after: int
    ) -> None:
        if events:
            connection.execute(
                insert(events_table).values(recorded_at=self._database.now()),
                [
                    {"sweep_id": sweep_id, "number": number, "body": body}
                    for number, body in enumerate(events, after + 1)
                ],
            )

    def _events_page(
        self, connection: Connection, sweep_id: str, after: int
    ) -> list[RecordedEvent]:
        table = events_table.c
        found = connection.execute(
            select(table.number, table.body)
            .where(table.sweep_id == sweep_id, table.number > after)
            .order_by(table.number)
            .limit(_PAGE)
        )
        return [RecordedEvent(number, body) for number, body in found.all()]

    def _stand(
        self, connection: Connection, sweep_id: str, facts: Sequence[Fact], after: int
    ) -> bool:
        table = facts_table.c
        found = connection.execute(
            select(table.kind, table.body)
            .where(table.sweep_id == sweep_id, table.number > after)
            .order_by(table.number)
        )
        return [Fact(kind, body) for kind, body in found] == list(facts)

    def _page(self, connection: Connection, sweep_id: str, after: int) -> list[RecordedFact]:
        table = facts_table.c
        found = connection.execute(
            select(table.number, table.recorded_at, table.kind, table.body)
            .where(table.sweep_id == sweep_id, table.number > after)
            .order_by(table.number)
            .limit(_PAGE)
        )
        return [
            RecordedFact(number, recorded_at, Fact(kind, body))
            for number, recorded_at, kind, body in found.all()
        ]

    def _sweep(self, connection: Connection, sweep_id: str) -> SweepRow:
        found = connection.execute(self._rows().where(sweeps_table.c.sweep_id == sweep_id))
        row = found.one_or_none()
        if row is None:
            raise SweepUnknownError(f"there is no sweep {sweep_id}")
        return _sweep_row(row)

    def _rows(self, config: Any = sweeps_table.c.config) -> Any:
        table = sweeps_table.c
        return select(
            table.sweep_id,
            table.folder,
            config,
            table.priority,
            table.status,
            table.submitted_at,
            table.owner,
            func.coalesce(table.lease_until - self._database.now(), 0.0),
            table.last,
            table.wish,
            table.managed,
            table.use_cache,
            table.summary,
            table.events,
            table.published,
        )


def _sweep_row(found: Any) -> SweepRow:
    row = SweepRow(*found)
    return replace(row, managed=bool(row.managed), use_cache=bool(row.use_cache))


def _new_values(news: News) -> dict[str, Any]:
    """The columns of a sweep that change with its facts."""
    table = sweeps_table.c
    values: dict[str, Any] = {}
    if news.status is not None:
        values["status"] = news.status
    if news.summary is not None:
        values["summary"] = news.summary
    if news.managed is not None:
        values["managed"] = int(news.managed)
    if news.managed:
        # A command that has told some is one that has told all that it could.
        never_told = (table.managed == 0) & (table.published == 0)
        values["published"] = case((never_told, table.events), else_=table.published)
    done_with = WISHES if news.granted else granted_by(news.status) if news.status else ()
    if done_with:
        values["wish"] = case((table.wish.in_(done_with), null()), else_=table.wish)
    return values
