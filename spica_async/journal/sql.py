"""The journal in SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    Row,
    Select,
    Table,
    Update,
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
    REQUESTS,
    Fact,
    JournalConflictError,
    Lease,
    LeaseLostError,
    NewSweep,
    Place,
    RecentEvents,
    RecordedEvent,
    RecordedFact,
    StatusUpdate,
    SweepExistsError,
    SweepRow,
    SweepTakenError,
    SweepUnknownError,
    requests_done_by,
)
from spica_async.journal.tables import (
    STEPS,
    events_table,
    facts_table,
    sweeps_table,
    version_table,
)
from spica_async.storage.database import Database
from spica_async.storage.errors import StorageDamagedError
from spica_async.storage.opening import database_at, set_up

BUSY_SECONDS: Final = 10.0
"""How long others may hold what a verb needs."""

_PAGE: Final = 1000
_ABSURD_SECONDS: Final = 3600.0


class SqlJournal:
    """A journal in a database; see `Journal` for its verbs.

    Attributes:
        database: Has its tables; `open` connects it.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

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
            StorageVersionError: if a newer version has written it.
            StorageError: if it cannot be opened.
        """
        database = database_at(where, busy_seconds, holds="journal")
        async with set_up(database, STEPS, version_table, busy_seconds):
            yield cls(database)

    async def check_writable(self) -> None:
        """See `Journal.check_writable`."""
        await self._change(update(version_table).values(version=version_table.c.version))

    async def create(self, sweep: NewSweep, lease: Lease | None = None) -> None:
        """See `Journal.create`."""

        def work(connection: Connection) -> None:
            now = self.database.now()
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
                self._insert(connection, events_table, sweep.sweep_id, _bodies(sweep.events), 0)
            except IntegrityError as error:
                raise SweepExistsError(f"there is a sweep {sweep.sweep_id} already") from error

        await self.database.write(work)

    async def submitted_as(self, token: str) -> str | None:
        """See `Journal.submitted_as`."""
        table = sweeps_table.c
        found = await self._rows(select(table.sweep_id).where(table.token == token))
        return found[0].sweep_id if found else None

    async def sweep(self, sweep_id: str) -> SweepRow:
        """See `Journal.sweep`."""
        return await self.database.read(lambda connection: self._sweep(connection, sweep_id))

    async def sweeps(
        self,
        statuses: Collection[str] | None = None,
        *,
        after: Place | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> list[SweepRow]:
        """See `Journal.sweeps`."""
        rows = self._sweep_rows(config=literal(""))
        wanted = queries.page_of(rows, statuses, after=after, offset=offset, limit=limit)
        return [_sweep_row(row) for row in await self._rows(wanted)]

    async def wanted(self, statuses: Collection[str]) -> list[SweepRow]:
        """See `Journal.wanted`."""
        wanted = queries.wanted_now(self._sweep_rows(config=literal("")), statuses)
        return [_sweep_row(row) for row in await self._rows(wanted)]

    async def counts(self) -> dict[str, int]:
        """See `Journal.counts`."""
        found = await self._rows(queries.by_status())
        return {row.status: row.sweeps for row in found}

    async def recent_events(self, since: float | None = None) -> RecentEvents:
        """See `Journal.recent_events`."""
        found = await self._rows(queries.recent_events(since, self.database.now()))
        at = next(at for sweep_id, _, _, at in found if not sweep_id)
        return RecentEvents(at, {name: (first, last) for name, first, last, _ in found if name})

    async def long_ended(
        self, statuses: Collection[str], *, for_seconds: float, limit: int
    ) -> list[str]:
        """See `Journal.long_ended`."""
        is_free, now = self._is_free(), self.database.now()
        wanted = queries.long_ended(statuses, is_free, now, for_seconds=for_seconds, limit=limit)
        return [row.sweep_id for row in await self._rows(wanted)]

    async def take(self, sweep_id: str, lease: Lease, *, instead_of: str | None = None) -> int:
        """See `Journal.take`."""

        def work(connection: Connection) -> int:
            table = sweeps_table.c
            now = self.database.now()
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

        return await self.database.write(work)

    async def give_back(self, sweep_id: str, owner: str) -> None:
        """See `Journal.give_back`."""
        table = sweeps_table.c
        await self._change(
            update(sweeps_table)
            .where(table.sweep_id == sweep_id, table.owner == owner)
            .values(owner=None, lease_until=None)
        )

    async def request(self, sweep_id: str, action: str) -> bool:
        """See `Journal.request`."""

        def work(connection: Connection) -> bool:
            table = sweeps_table.c
            is_cancelled = table.requested == "cancel"
            asked = connection.execute(
                update(sweeps_table)
                .where(table.sweep_id == sweep_id, table.status.in_(["queued", "running"]))
                .values(requested=case((is_cancelled, table.requested), else_=action))
            )
            if asked.rowcount == 0:
                self._sweep(connection, sweep_id)
            return asked.rowcount == 1

        return await self.database.write(work)

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

        return await self.database.write(work)

    async def append(
        self,
        sweep_id: str,
        owner: str,
        facts: Sequence[Fact],
        *,
        after: int,
        changes: StatusUpdate | None = None,
    ) -> int:
        """See `Journal.append`."""
        changes = changes or StatusUpdate()
        last, last_event = after + len(facts), changes.events_after + len(changes.events)

        def work(connection: Connection) -> None:
            table = sweeps_table.c
            is_ours = (
                table.sweep_id == sweep_id,
                table.owner == owner,
                table.lease_until > self.database.now(),
            )
            as_expected = [table.last == after]
            values = {"last": last, **_new_values(changes)}
            if changes.events:
                as_expected.append(table.events == changes.events_after)
                values["events"] = last_event
            counted = connection.execute(
                update(sweeps_table).where(*is_ours, *as_expected).values(**values)
            )
            if counted.rowcount == 1:
                self._insert(connection, facts_table, sweep_id, map(asdict, facts), after)
                events = _bodies(changes.events)
                self._insert(connection, events_table, sweep_id, events, changes.events_after)
                return
            found = connection.execute(
                select(table.last, table.status, table.events).where(*is_ours)
            )
            row = found.one_or_none()
            if row is None:
                raise LeaseLostError(f"sweep {sweep_id} is not run by {owner} any more")
            as_asked = (
                row.last == last
                and changes.status in (None, row.status)
                and (row.events == last_event or not changes.events)
            )
            if not (as_asked and _are_latest(connection, sweep_id, facts, after)):
                raise JournalConflictError(
                    f"sweep {sweep_id}: somebody else has written, for its latest fact is "
                    f"{row.last} and was {after}"
                )

        await self.database.write(work)
        return last

    async def facts(self, sweep_id: str, after: int = 0) -> AsyncIterator[RecordedFact]:
        """See `Journal.facts`."""
        async for row in self._numbered(facts_table, sweep_id, after):
            if row.number != after + 1:
                raise StorageDamagedError(
                    f"{self.database.name}: sweep {sweep_id} has no fact {after + 1}"
                )
            yield _recorded(row)
            after = row.number

    async def latest(
        self, sweep_id: str, kinds: Collection[str], *, after: int = 0
    ) -> RecordedFact | None:
        """See `Journal.latest`."""
        table = facts_table.c
        found = await self._rows(
            select(facts_table)
            .where(table.sweep_id == sweep_id, table.number > after, table.kind.in_(kinds))
            .order_by(table.number.desc())
            .limit(1)
        )
        return _recorded(found[0]) if found else None

    async def events(self, sweep_id: str, after: int = 0) -> AsyncIterator[RecordedEvent]:
        """See `Journal.events`."""
        async for row in self._numbered(events_table, sweep_id, after):
            yield RecordedEvent(row.number, row.body)

    async def unpublished(self) -> list[str]:
        """See `Journal.unpublished`."""
        return [row.sweep_id for row in await self._rows(queries.unpublished())]

    async def mark_published(self, sweep_id: str, number: int) -> None:
        """See `Journal.mark_published`."""
        table = sweeps_table.c
        await self._change(
            update(sweeps_table)
            .where(table.sweep_id == sweep_id, table.published < number)
            .values(published=number)
        )

    async def begin_publishing(self, sweep_id: str, lease: Lease) -> bool:
        """See `Journal.begin_publishing`."""
        table, now = sweeps_table.c, self.database.now()
        is_free = table.teller.is_(None) | (table.teller_until <= now)
        begun = await self._change(
            update(sweeps_table)
            .where(table.sweep_id == sweep_id, is_free | (table.teller == lease.owner))
            .values(teller=lease.owner, teller_until=now + lease.seconds)
        )
        return begun == 1

    async def end_publishing(self, sweep_id: str, owner: str) -> None:
        """See `Journal.end_publishing`."""
        table = sweeps_table.c
        await self._change(
            update(sweeps_table)
            .where(table.sweep_id == sweep_id, table.teller == owner)
            .values(teller=None, teller_until=None)
        )

    async def _rows(self, statement: Executable) -> Sequence[Any]:
        return await self.database.read(lambda connection: connection.execute(statement).all())

    async def _change(self, statement: Update) -> int:
        """Change rows in a transaction of its own; how many there were."""

        def work(connection: Connection) -> int:
            return connection.execute(statement).rowcount

        return await self.database.write(work)

    async def _numbered(self, table: Table, sweep_id: str, after: int) -> AsyncIterator[Any]:
        """The facts or events of a sweep behind a number, in order, read page by page."""
        rows = select(table).where(table.c.sweep_id == sweep_id).order_by(table.c.number)
        while True:
            page = await self._rows(rows.where(table.c.number > after).limit(_PAGE))
            for row in page:
                yield row
                after = row.number
            if len(page) < _PAGE:
                return

    def _is_free(self) -> ColumnElement[bool]:
        """Whether nobody runs a sweep."""
        table, now = sweeps_table.c, self.database.now()
        # No lease is that long: it was written when the clock was wrong.
        is_absurd = table.lease_until > now + _ABSURD_SECONDS
        return table.owner.is_(None) | (table.lease_until <= now) | is_absurd

    def _taken_error(self, connection: Connection, sweep_id: str) -> SweepTakenError:
        """The error for a sweep that is somebody else's.

        Raises:
            SweepUnknownError: there is none of that name.
        """
        row = self._sweep(connection, sweep_id)
        return SweepTakenError(sweep_id, row.owner or "somebody", row.lease_seconds)

    def _insert(
        self,
        connection: Connection,
        table: Table,
        sweep_id: str,
        rows: Iterable[dict[str, Any]],
        after: int,
    ) -> None:
        """Insert facts or events of a sweep, numbered from the one behind `after` on."""
        numbered = [
            {"sweep_id": sweep_id, "number": number, **row}
            for number, row in enumerate(rows, after + 1)
        ]
        if numbered:
            connection.execute(insert(table).values(recorded_at=self.database.now()), numbered)

    def _sweep(self, connection: Connection, sweep_id: str) -> SweepRow:
        found = connection.execute(self._sweep_rows().where(sweeps_table.c.sweep_id == sweep_id))
        row = found.one_or_none()
        if row is None:
            raise SweepUnknownError(f"there is no sweep {sweep_id}")
        return _sweep_row(row)

    def _sweep_rows(self, config: Any = sweeps_table.c.config) -> Select[Any]:
        """Select what a `SweepRow` has as attributes."""
        table = sweeps_table.c
        lease_seconds = func.coalesce(table.lease_until - self.database.now(), 0.0)
        names = {field.name for field in fields(SweepRow)} - {"config", "lease_seconds"}
        return select(
            *(table[name].label(name) for name in sorted(names)),
            config.label("config"),
            lease_seconds.label("lease_seconds"),
        )


def _sweep_row(found: Row[Any]) -> SweepRow:
    row = SweepRow(**found._asdict())
    return replace(row, managed=bool(row.managed), use_cache=bool(row.use_cache))


def _recorded(row: Any) -> RecordedFact:
    return RecordedFact(row.number, row.recorded_at, Fact(row.kind, row.body))


def _bodies(events: Sequence[str]) -> list[dict[str, Any]]:
    return [{"body": body} for body in events]


def _are_latest(connection: Connection, sweep_id: str, facts: Sequence[Fact], after: int) -> bool:
    """Whether these facts, and no others, stand behind a number."""
    table = facts_table.c
    found = connection.execute(
        select(table.kind, table.body)
        .where(table.sweep_id == sweep_id, table.number > after)
        .order_by(table.number)
    )
    return [Fact(kind, body) for kind, body in found] == list(facts)


def _new_values(changes: StatusUpdate) -> dict[str, Any]:
    """The columns of a sweep that change with its facts."""
    table = sweeps_table.c
    values: dict[str, Any] = {}
    if changes.status is not None:
        values["status"] = changes.status
    if changes.summary is not None:
        values["summary"] = changes.summary
    if changes.managed is not None:
        values["managed"] = int(changes.managed)
    if changes.managed:
        # A command that has published any has published all that it could.
        never_published = (table.managed == 0) & (table.published == 0)
        values["published"] = case((never_published, table.events), else_=table.published)
    done_with = (
        REQUESTS
        if changes.request_done
        else requests_done_by(changes.status)
        if changes.status
        else ()
    )
    if done_with:
        values["requested"] = case((table.requested.in_(done_with), null()), else_=table.requested)
    return values
