"""A PostgreSQL server that dies, restarts, cuts connections or falls silent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import asyncpg
import pytest
from sqlalchemy import Connection, text, update
from sqlalchemy.util import await_only
from support.broker import free_port
from support.commands import small_sweep
from support.journals import LONG, all_facts, fact, new_sweep, numbers_that_count, some_facts
from support.postgres import GUARDED, PASSWORD, PostgresNode

from schemas.config import SmartSearchConfig
from schemas.journal import Requested
from spica_async.journal.port import Journal, Lease
from spica_async.journal.sql import SqlJournal
from spica_async.journal.tables import sweeps_table
from spica_async.search.events.pending import PendingEvents
from spica_async.search.fact_log import SweepLog
from spica_async.storage import postgres as postgres_module
from spica_async.storage.address import ServerAddress, read_address
from spica_async.storage.errors import StorageUnavailableError
from spica_async.storage.postgres import PostgresDatabase


@pytest.fixture
def database(postgres: PostgresNode) -> str:
    return postgres.add_database()


@pytest.fixture
async def journal(postgres: PostgresNode, database: str) -> AsyncIterator[Journal]:
    async with SqlJournal.open(postgres.url(database)) as opened:
        await opened.create(new_sweep(), LONG)
        yield opened


async def append_until(stop: asyncio.Event, journal: Journal) -> tuple[int, int]:
    """Append again and again; what fails is tried again as it is.

    Returns:
        The number of the last fact, and how often something failed.
    """
    last = failures = 0
    while not stop.is_set():
        try:
            last = await journal.append("one", "me", some_facts(last, 3), after=last)
        except StorageUnavailableError:
            failures += 1
            await asyncio.sleep(0.02)
    return last, failures


@pytest.mark.parametrize("end", [PostgresNode.kill, PostgresNode.stop])
async def test_a_server_that_ends_and_starts_again(
    postgres: PostgresNode, journal: Journal, end: Callable[[PostgresNode], None]
) -> None:
    stop = asyncio.Event()
    writing = asyncio.ensure_future(append_until(stop, journal))
    for _ in range(2):
        await asyncio.sleep(0.2)
        await asyncio.to_thread(end, postgres)
        with pytest.raises(StorageUnavailableError):
            await journal.sweep("one")
        await asyncio.to_thread(postgres.start)
        await asyncio.sleep(0.2)
    stop.set()
    last, failures = await writing
    assert failures > 0
    assert last > 0
    # As many as it was told, so nothing is doubled.
    assert await numbers_that_count(journal) == last


async def test_connections_that_are_cut(
    postgres: PostgresNode, journal: Journal, database: str
) -> None:
    stop = asyncio.Event()
    writing = asyncio.ensure_future(append_until(stop, journal))
    cut = 0
    for _ in range(12):
        await asyncio.sleep(0.05)
        cut += await asyncio.to_thread(postgres.cut_connections, database)
    stop.set()
    last, _ = await writing
    assert cut > 0
    assert await numbers_that_count(journal) == last


async def test_one_that_is_cut_while_nobody_uses_it_is_not_noticed(
    postgres: PostgresNode, journal: Journal, database: str
) -> None:
    assert await asyncio.to_thread(postgres.cut_connections, database) > 0
    assert await journal.append("one", "me", [fact(1)], after=0) == 1


def requested(number: int) -> Requested:
    return Requested(at=0.0, branch="agg", number=number)


class TestAFailover:
    """What was the primary server takes no writes until one is promoted."""

    @pytest.mark.parametrize("as_standby", [True, False], ids=["restarted", "switched"])
    async def test_a_running_sweep_waits_for_it(
        self, postgres: PostgresNode, journal: Journal, *, as_standby: bool
    ) -> None:
        config = SmartSearchConfig.model_validate(small_sweep())
        events = PendingEvents("one", config, stored=1)
        async with SweepLog(journal, "one", LONG, last=0, events=events).open() as log:
            await log.record(requested(1), lambda: None)
            if as_standby:
                await asyncio.to_thread(postgres.restart_as_standby)
            else:
                await asyncio.to_thread(postgres.only_read, on=True)
            with pytest.raises(StorageUnavailableError, match="read-only"):
                await journal.check_writable()
            assert (await journal.sweep("one")).last == 1
            recording = asyncio.ensure_future(log.record(requested(2), lambda: None))
            await journal.sweeps()
            assert not recording.done()
            await asyncio.to_thread(
                postgres.promote if as_standby else partial(postgres.only_read, on=False)
            )
            await recording
        assert len(await all_facts(journal)) == 2

    async def test_a_connection_to_the_old_server_is_not_kept(
        self, postgres: PostgresNode, database: str
    ) -> None:
        alter = f'ALTER DATABASE "{database}"'
        async with SqlJournal.open(postgres.url(database)) as first:
            await first.create(new_sweep(), LONG)
        postgres.query(f"{alter} SET default_transaction_read_only = on")
        async with SqlJournal.open(postgres.url(database)) as journal:
            with pytest.raises(StorageUnavailableError, match="read-only"):
                await journal.append("one", "me", [fact(1)], after=0)
            # Whoever is there already goes on to read only.
            postgres.query(f"{alter} RESET default_transaction_read_only")
            assert await journal.append("one", "me", [fact(1)], after=0) == 1

    async def test_of_several_servers_the_one_that_takes_writes_is_used(
        self, postgres: PostgresNode, database: str
    ) -> None:
        several = postgres.url(database).replace("/journal", f",127.0.0.1:{free_port()}/journal")
        async with SqlJournal.open(several) as journal:
            await journal.create(new_sweep(), LONG)
            await asyncio.to_thread(postgres.restart_as_standby)
            with pytest.raises(StorageUnavailableError):
                await journal.sweep("one")
            await asyncio.to_thread(postgres.promote)
            await journal.check_writable()


class Relay:
    """Passes on what a client and the server say to each other, but for one answer."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        self.swallow: bytes | None = None
        self.swallowed = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Relay]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        passing = asyncio.ensure_future(self._pass(reader, forth))
        await self._pass(back, writer, answers=True)
        await passing

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool = False
    ) -> None:
        while data := await reader.read(65536):
            if answers and self.swallow is not None and self.swallow in data:
                self.swallow = None
                self.swallowed += 1
                break
            writer.write(data)
        writer.close()


async def test_a_commit_whose_answer_is_lost(postgres: PostgresNode, database: str) -> None:
    async with Relay(postgres.port).running() as relay:
        url = postgres.url(database).replace(str(postgres.port), str(relay.port))
        async with SqlJournal.open(url) as journal:
            await journal.create(new_sweep(), LONG)
            last = 0
            for number in range(3):
                relay.swallow = b"COMMIT\0"
                with pytest.raises(StorageUnavailableError):
                    await journal.append("one", "me", some_facts(last, 3), after=last)
                assert relay.swallowed == number + 1
                # It is there, and is not written a second time.
                assert (await journal.sweep("one")).last == last + 3
                last = await journal.append("one", "me", some_facts(last, 3), after=last)
            assert await numbers_that_count(journal) == last == 9


class TestSilence:
    @pytest.fixture(autouse=True)
    def _impatience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgres_module, "_CONNECT_SECONDS", 0.5)

    async def test_it_is_noticed(self, postgres: PostgresNode, database: str) -> None:
        url = postgres.url(database)
        async with SqlJournal.open(url, busy_seconds=0.5) as journal:
            await journal.create(new_sweep(), LONG)
            postgres.freeze()
            before = time.monotonic()
            with pytest.raises(StorageUnavailableError, match="does not answer"):
                await journal.append("one", "me", [fact(1)], after=0)
            with pytest.raises(StorageUnavailableError, match="does not answer"):
                await journal.sweep("one")
            with pytest.raises(StorageUnavailableError, match="does not answer"):
                async with SqlJournal.open(url, busy_seconds=0.5):
                    pass
            assert time.monotonic() - before < 15
            postgres.thaw()
            assert await journal.append("one", "me", [fact(1)], after=0) == 1
            assert await numbers_that_count(journal) == 1

    async def test_a_second_cancellation_ends_the_wait(
        self, postgres: PostgresNode, database: str
    ) -> None:
        async with SqlJournal.open(postgres.url(database), busy_seconds=60) as journal:
            await journal.create(new_sweep(), LONG)
            postgres.freeze()
            writing = asyncio.ensure_future(journal.append("one", "me", [fact(1)], after=0))
            await asyncio.sleep(0.2)
            writing.cancel()
            assert await asyncio.wait([writing], timeout=0.3) == (set(), {writing})
            writing.cancel()
            await asyncio.wait([writing], timeout=10)
            assert writing.cancelled()
            postgres.thaw()
            assert await journal.append("one", "me", [fact(1)], after=0) == 1
            assert await numbers_that_count(journal) == 1


@asynccontextmanager
async def database_at(url: str) -> AsyncIterator[PostgresDatabase]:
    address = read_address(url)
    assert isinstance(address, ServerAddress)
    opened = PostgresDatabase(address, busy_seconds=10, holds="journal")
    try:
        yield opened
    finally:
        await opened.dispose()


class TestAnAbsentClient:
    async def test_a_sweep_that_it_has_locked_can_soon_be_taken(
        self, postgres: PostgresNode, database: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_module, "_IDLE_SECONDS", 1)
        has_locked, goes_on = asyncio.Event(), asyncio.Event()

        def work(connection: Connection) -> None:
            connection.execute(update(sweeps_table).values(last=7))
            has_locked.set()
            # As a host that is suspended, or that nothing is heard of any more.
            await_only(goes_on.wait())
            connection.execute(update(sweeps_table).values(last=8))

        url = postgres.url(database)
        async with SqlJournal.open(url) as journal, database_at(url) as gone:
            await journal.create(new_sweep(), Lease("gone", 0.1))
            writing = asyncio.ensure_future(gone.write(work))
            await has_locked.wait()
            await asyncio.sleep(0.2)  # Until the lease has run out.
            before = time.monotonic()
            assert await journal.take("one", LONG) == 0
            assert time.monotonic() - before < 6
            goes_on.set()
            # Which is what is tried again.
            with pytest.raises(StorageUnavailableError):
                await writing
            assert (await journal.sweep("one")).last == 0
            # That connection is not used again.
            assert await gone.write(lambda connection: connection.scalar(text("SELECT 1"))) == 1

    async def test_what_the_server_says_of_it_is_no_fault_of_the_journal(
        self, postgres: PostgresNode
    ) -> None:
        # As a rule the connection's end is noticed first.
        said = asyncpg.IdleInTransactionSessionTimeoutError("terminating connection")
        async with database_at(postgres.url()) as opened:
            assert isinstance(opened.translate(said), StorageUnavailableError)

    async def test_any_user_has_it_noticed(self, postgres: PostgresNode, database: str) -> None:
        url = postgres.url(database, user=GUARDED, password=PASSWORD)

        def settings(connection: Connection) -> dict[str, str]:
            found = connection.execute(
                text(
                    "SELECT name, setting FROM pg_settings WHERE name LIKE 'tcp\\_%'"
                    " OR name = 'idle_in_transaction_session_timeout'"
                )
            )
            return {row.name: row.setting for row in found}

        async with database_at(url) as opened:
            assert await opened.read(settings) == {
                "idle_in_transaction_session_timeout": "10000",
                "tcp_keepalives_idle": "10",
                "tcp_keepalives_interval": "10",
                "tcp_keepalives_count": "3",
                "tcp_user_timeout": "30000",
            }
