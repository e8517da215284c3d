"""The cache in SQLite or PostgreSQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    delete,
    event,
    func,
    inspect,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from schemas.messages import Measurement
from spica_async.evaluate.cache.files import alone
from spica_async.evaluate.cache.port import MAX_KEPT, Cached, CacheStats, is_cacheable
from spica_async.evaluate.cache.tables import (
    STEPS,
    entries_table,
    measurements_table,
    metadata,
    version_table,
)
from spica_async.storage.address import FileAddress, read_address
from spica_async.storage.database import Database
from spica_async.storage.errors import (
    StorageBusyError,
    StorageDamagedError,
    StorageError,
    StorageFullError,
)
from spica_async.storage.opening import database_at, set_up

BUSY_SECONDS: Final = 2.0
"""How long others may hold what a verb needs: a replay may be had for less than a long wait."""

# Uses that are not written yet; their loss costs an entry some of its age.
_UNWRITTEN_USES: Final = 64
# Then a look at the size, which reads all entries, but none of the measurements, costs nothing.
_PUTS_PER_LOOK: Final = 500
# What stays when there is too much, so that there is not too much again at once.
_STAYS: Final = 0.9
_THROUGHPUT: Final = "output_throughput_tok_s"

_KEPT = (
    select(
        entries_table.c.measured,
        measurements_table.c.body,
        measurements_table.c.worker,
        measurements_table.c.measured_at,
    )
    .join_from(measurements_table, entries_table)
    .where(measurements_table.c.key == bindparam("wanted"))
    .order_by(measurements_table.c.number)
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a cache may become, roughly.

    Attributes:
        entries: Their number.
        bytes: Of all their measurements. A file is up to twice as large: of those of 3 kB, as a
            replay's are, one takes a page of 4 KiB.
    """

    entries: int = 200_000
    bytes: int = 512 * 2**20


class SqlResultCache:
    """A cache in a database, whose errors are the caller's; see `ResultCache` for its verbs."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self.database = database
        self._limits = limits
        self._is_file = _is_file(database)
        self._uses: Counter[str] = Counter()
        self._puts = 0

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        where: str | Path,
        *,
        busy_seconds: float = BUSY_SECONDS,
        limits: Limits | None = None,
    ) -> AsyncIterator[SqlResultCache]:
        """Open a cache, with its tables made or brought up to date.

        Args:
            where: See `read_address`; a file that is missing is made, with its folder.
            busy_seconds: How long to wait for what others hold.
            limits: How large it may become.

        Raises:
            InputError: if it names no place.
            StorageVersionError: if a newer version has written it.
            StorageDamagedError: if it is none, or none any more.
            StorageError: if it cannot be opened.
        """
        database = database_at(where, busy_seconds, holds="result cache")
        if _is_file(database):
            event.listen(database.engine, "connect", _write_with_ease)
        async with AsyncExitStack() as stack:
            async with _turn(where, busy_seconds):
                await stack.enter_async_context(
                    set_up(database, STEPS, version_table, busy_seconds)
                )
                if not await database.read(_has_tables):
                    raise StorageDamagedError(f"{database.name}: its tables are not ours")
            yield cls(database, limits or Limits())

    async def get(self, key: str) -> Cached | None:
        """See `ResultCache.get`.

        Raises:
            StorageError: if the database could not do it.
        """

        def work(connection: Connection) -> Sequence[Any]:
            return (connection.execute(_KEPT, {"wanted": key})).all()

        kept = [cached for row in await self.database.read(work) if (cached := _cached(row))]
        if not kept:
            return None
        self._uses[key] += 1
        if len(self._uses) >= _UNWRITTEN_USES:
            with suppress(StorageError):  # The answer is there all the same.
                await self.write_uses()
        kept.sort(key=_throughput)
        median = kept.pop((len(kept) - 1) // 2)
        return replace(median, others=tuple(one.measurement for one in kept))

    async def put(self, key: str, measurement: Measurement, *, worker: str, noisy: bool) -> None:
        """See `ResultCache.put`.

        Raises:
            StorageError: if the database could not do it.
        """
        if not is_cacheable(measurement):
            return
        body = measurement.model_dump_json(exclude_defaults=True)

        def work(connection: Connection) -> None:
            now = self.database.now()
            entry = {
                "key": key,
                "noisy": int(noisy),
                "measured": 1,
                "bytes": 0,
                "hits": 0,
                "used_at": now,
            }
            # First, for it makes others wait who have measured the same.
            counted = connection.execute(
                self._upsert(
                    entries_table,
                    entry,
                    {
                        "noisy": int(noisy),
                        "measured": entries_table.c.measured + 1,
                        "used_at": now,
                    },
                ).returning(entries_table.c.measured)
            )
            measured = {
                "body": body,
                "bytes": len(body.encode()),
                "worker": worker,
                "measured_at": now,
            }
            place = {"key": key, "number": counted.scalar_one() % MAX_KEPT if noisy else 0}
            connection.execute(self._upsert(measurements_table, place | measured, measured))
            size = (
                select(func.sum(measurements_table.c.bytes))
                .where(measurements_table.c.key == key)
                .scalar_subquery()
            )
            connection.execute(
                update(entries_table).where(entries_table.c.key == key).values(bytes=size)
            )

        await self.database.write(work)
        if self._puts % _PUTS_PER_LOOK == 0:
            await self._stay_small()
        self._puts += 1

    async def stats(self) -> CacheStats:
        """What there is.

        Raises:
            StorageError: if the database could not do it.
        """
        await self.write_uses()

        def work(connection: Connection) -> CacheStats:
            table = entries_table.c
            found = connection.execute(
                select(
                    func.count(),
                    select(func.count()).select_from(measurements_table).scalar_subquery(),
                    func.coalesce(func.sum(table.noisy), 0),
                    func.coalesce(func.sum(table.bytes), 0),
                    func.coalesce(func.sum(table.hits), 0),
                    func.min(table.used_at),
                    func.max(table.used_at),
                ).select_from(entries_table)
            )
            return CacheStats(*found.one())

        return await self.database.read(work)

    async def prune(
        self,
        *,
        older_than_seconds: float | None = None,
        max_entries: int | None = None,
        everything: bool = False,
    ) -> int:
        """Forget entries, those first that were not used for longest.

        A file gives the room back where it can.

        Args:
            older_than_seconds: Forget what was not used for so long; None: nothing for its age.
            max_entries: How many may stay; None: any number.
            everything: Whether none may stay.

        Returns:
            How many were forgotten.

        Raises:
            StorageError: if the database could not do it.
        """
        await self.write_uses()
        table = entries_table.c
        goes: list[ColumnElement[bool]] = []
        if everything:
            goes.append(true())
        if older_than_seconds is not None:
            goes.append(table.used_at <= self.database.now() - older_than_seconds)
        if max_entries is not None:
            surplus = select(table.key).order_by(table.used_at.desc(), table.key)
            goes.append(table.key.in_(surplus.offset(max_entries)))
        if not goes:
            return 0
        forgotten = await self._forget(or_(*goes))
        if forgotten and self._is_file:
            # It takes nobody else at the file, and room for a copy.
            with suppress(StorageBusyError, StorageFullError):
                await self.database.read(lambda connection: connection.exec_driver_sql("VACUUM"))
        return forgotten

    async def write_uses(self) -> None:
        """Write which entries were used since the last time; `open` does not when it ends.

        Raises:
            StorageError: if the database could not do it; they are forgotten.
        """
        # In order, for two that lock the same rows in two orders stop each other.
        uses = [{"used": key, "times": times} for key, times in sorted(self._uses.items())]
        self._uses.clear()
        if not uses:
            return

        def work(connection: Connection) -> None:
            table = entries_table.c
            connection.execute(
                update(entries_table)
                .where(table.key == bindparam("used"))
                .values(hits=table.hits + bindparam("times"), used_at=self.database.now()),
                uses,
            )

        await self.database.write(work)

    def _upsert(self, table: Any, values: Mapping[str, Any], otherwise: Mapping[str, Any]) -> Any:
        """Insert a row; where there is one of its key, change that."""
        insert = sqlite.insert if self._is_file else postgresql.insert
        return (
            insert(table)
            .values(**values)
            .on_conflict_do_update(index_elements=list(table.primary_key), set_=dict(otherwise))
        )

    async def _stay_small(self) -> None:
        table = entries_table.c

        def work(connection: Connection) -> Sequence[Any]:
            found = connection.execute(
                select(func.count(), func.coalesce(func.sum(table.bytes), 0)).select_from(
                    entries_table
                )
            )
            return found.one()

        entries, size = await self.database.read(work)
        limits = self._limits
        if entries <= limits.entries and size <= limits.bytes:
            return
        latest_first = (table.used_at.desc(), table.key)
        ranked = select(
            table.key,
            func.row_number().over(order_by=latest_first).label("place"),
            func.sum(table.bytes).over(order_by=latest_first).label("size"),
        ).subquery()
        too_much = select(ranked.c.key).where(
            or_(
                ranked.c.place > int(limits.entries * _STAYS),
                ranked.c.size > int(limits.bytes * _STAYS),
            )
        )
        await self._forget(table.key.in_(too_much))

    async def _forget(self, which: Any) -> int:
        def work(connection: Connection) -> int:
            gone = connection.execute(delete(entries_table).where(which))
            return gone.rowcount

        return await self.database.write(work)


def _is_file(database: Database) -> bool:
    return database.engine.dialect.name == "sqlite"


def _turn(where: str | Path, seconds: float) -> AbstractAsyncContextManager[None]:
    address = read_address(where)
    return alone(address.path, seconds) if isinstance(address, FileAddress) else nullcontext()


def _write_with_ease(connection: Any, _record: Any) -> None:
    # What a power cut takes back is measured again.
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous = NORMAL")
    cursor.close()


def _has_tables(connection: Connection) -> bool:
    inspector = inspect(connection)
    return all(
        inspector.has_table(table.name)
        and {column.name for column in table.columns}
        <= {column["name"] for column in inspector.get_columns(table.name)}
        for table in metadata.tables.values()
    )


def _cached(row: Any) -> Cached | None:
    try:
        measurement = Measurement.model_validate_json(row.body)
    except ValidationError:  # Not of ours: measured again, and kept over it.
        return None
    return Cached(measurement, row.measured, row.worker, row.measured_at)


def _throughput(cached: Cached) -> float:
    # A refusal by the engine stands below every measurement.
    return (cached.measurement.report or {}).get(_THROUGHPUT, -1.0)
