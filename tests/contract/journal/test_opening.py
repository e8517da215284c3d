"""Journals that can be opened, and what is told of those that cannot."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import traceback
from pathlib import Path

import pytest
from support.broker import free_port
from support.journals import LONG, fact, new_sweep, numbers_that_count
from support.postgres import GUARDED, PASSWORD, PostgresNode

from spica_async.errors import InputError, SpicaError
from spica_async.journal.sql import SqlJournal
from spica_async.storage.address import read_address, sqlite_url
from spica_async.storage.errors import StorageDamagedError, StorageError, StorageUnavailableError

SECRET = "hush-hush"


async def refusal(where: str | Path) -> SpicaError:
    with pytest.raises(SpicaError) as refused:
        async with SqlJournal.open(where, busy_seconds=0.5):
            pass
    return refused.value


def files_below(folder: Path) -> list[Path]:
    return [found for found in folder.rglob("*") if found.is_file()]


class TestFiles:
    @pytest.mark.parametrize(
        "name",
        [
            "a b.db",
            "what?.db",
            "50%.db",
            "%41.db",
            "#1.db",
            "x&mode=ro;y.db",
            "ä☃.db",
            "new\nline.db",
            ":memory:",
            "file:x",
            os.fsdecode(b"\xff\xfe.db"),
            "d?%#/e e/f.db",
        ],
    )
    async def test_a_path_may_have_any_characters(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / name
        async with SqlJournal.open(sqlite_url(path)) as journal:
            await journal.create(new_sweep(), LONG)
            await journal.append("one", "me", [fact(1)], after=0)
        async with SqlJournal.open(path) as journal:
            assert await numbers_that_count(journal) == 1
        assert files_below(tmp_path) == [path]

    async def test_a_relative_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        async with SqlJournal.open(Path("a.db")) as journal:
            await journal.create(new_sweep())
        async with SqlJournal.open("sqlite:///a.db") as journal:
            assert len(await journal.sweeps()) == 1

    async def test_two_open_an_empty_one_at_once(self, tmp_path: Path) -> None:
        for number in range(5):
            path = tmp_path / f"{number}.db"

            async def use(name: str, path: Path = path) -> None:
                async with SqlJournal.open(path) as journal:
                    await journal.create(new_sweep(name))

            await asyncio.gather(*(use(name) for name in "abcdefgh"))
            async with SqlJournal.open(path) as journal:
                assert len(await journal.sweeps()) == 8

    async def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        path = tmp_path / "file" / "below" / "journal.db"
        error = await refusal(path)
        assert isinstance(error, StorageError)
        assert str(error) == f"journal {path}: not a directory"

    async def test_a_folder_that_cannot_be_written(self) -> None:
        error = await refusal(Path("/proc/self/journal.db"))
        assert isinstance(error, StorageError)
        assert str(error) == "journal /proc/self/journal.db: no such file or directory"

    async def test_a_folder_that_is_somebody_elses(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Root may write everywhere, so the answer is made up.
        monkeypatch.setattr(os, "access", lambda path, mode: False)
        error = await refusal(tmp_path / "j.db")
        assert str(error) == f"journal {tmp_path}/j.db: its folder cannot be written"

    async def test_a_folder_in_its_place(self, tmp_path: Path) -> None:
        assert str(await refusal(tmp_path)) == f"journal {tmp_path}: is a directory"

    async def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        path = tmp_path / "journal.db"
        path.write_text("Dear diary, " * 1000)
        error = await refusal(path)
        assert isinstance(error, StorageDamagedError)
        assert str(error) == f"journal {path}: file is not a database"
        assert path.read_text() == "Dear diary, " * 1000

    async def test_somebody_elses_tables(self, tmp_path: Path) -> None:
        path = tmp_path / "journal.db"
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE sweeps (id)")
        other.close()
        assert str(await refusal(path)) == f"journal {path}: table sweeps already exists"

    async def test_a_file_that_is_deleted_meanwhile(self, tmp_path: Path) -> None:
        path = tmp_path / "journal.db"
        async with SqlJournal.open(path) as journal:
            await journal.create(new_sweep(), LONG)
            path.unlink()
            with pytest.raises(StorageError, match="deleted or replaced meanwhile"):
                await journal.append("one", "me", [fact(1)], after=0)
            path.write_bytes(b"")
            with pytest.raises(StorageError, match="deleted or replaced meanwhile"):
                await journal.append("one", "me", [fact(1)], after=0)


class TestServers:
    async def test_a_password_that_is_right(self, postgres: PostgresNode) -> None:
        name = postgres.add_database()
        postgres.query(f'ALTER DATABASE "{name}" OWNER TO {GUARDED}')
        url = postgres.url(name, user=GUARDED, password=PASSWORD)
        async with SqlJournal.open(url) as journal:
            await journal.create(new_sweep())
        async with SqlJournal.open(url.replace("postgresql:", "postgres:")) as journal:
            assert len(await journal.sweeps()) == 1

    async def test_options_as_libpq_has_them(self, postgres: PostgresNode) -> None:
        url = postgres.url(postgres.add_database())
        async with SqlJournal.open(f"{url}?sslmode=disable&application_name=mine") as journal:
            await journal.create(new_sweep())
            assert postgres.query(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mine'"
            ) == [(1,)]

    async def test_a_login_that_is_refused(self, postgres: PostgresNode) -> None:
        error = await refusal(postgres.url(user=GUARDED, password=SECRET))
        assert isinstance(error, StorageError)
        assert str(error) == (
            f"journal postgresql://guarded@127.0.0.1:{postgres.port}/postgres: "
            'password authentication failed for user "guarded"'
        )

    async def test_rights_that_are_missing(self, postgres: PostgresNode) -> None:
        name = postgres.add_database()
        error = await refusal(postgres.url(name, user=GUARDED, password=PASSWORD))
        assert str(error) == (
            f"journal postgresql://guarded@127.0.0.1:{postgres.port}/{name}: "
            "permission denied for schema public"
        )

    async def test_a_database_that_is_missing(self, postgres: PostgresNode) -> None:
        error = await refusal(postgres.url("nothing"))
        assert isinstance(error, StorageError)
        assert str(error) == (
            f"journal postgresql://spica@127.0.0.1:{postgres.port}/nothing: "
            'database "nothing" does not exist'
        )

    async def test_a_server_that_is_not_there(self) -> None:
        port = free_port()
        error = await refusal(f"postgresql://me:{SECRET}@127.0.0.1:{port}/x")
        assert isinstance(error, StorageUnavailableError)
        assert str(error).startswith(f"journal postgresql://me@127.0.0.1:{port}/x: ")
        assert "onnect" in str(error)

    async def test_a_host_that_has_no_address(self) -> None:
        error = await refusal(f"postgresql://me:{SECRET}@nobody.invalid/x")
        assert isinstance(error, StorageUnavailableError)
        assert str(error).startswith("journal postgresql://me@nobody.invalid/x: ")

    async def test_a_server_that_speaks_something_else(self) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            error = await refusal(f"postgresql://me:{SECRET}@127.0.0.1:{port}/x")
        assert isinstance(error, StorageUnavailableError)
        assert f"@127.0.0.1:{port}/x: " in str(error)

    async def test_two_open_an_empty_one_at_once(self, postgres: PostgresNode) -> None:
        url = postgres.url(postgres.add_database())

        async def use(name: str) -> None:
            async with SqlJournal.open(url) as journal:
                await journal.create(new_sweep(name))

        await asyncio.gather(*(use(name) for name in "abcdefgh"))
        async with SqlJournal.open(url) as journal:
            assert len(await journal.sweeps()) == 8


class TestAddresses:
    @pytest.mark.parametrize(
        "url",
        [
            "",
            "journal.db",
            "sqlite://x.db",
            "sqlite:///",
            "sqlite:///a?mode=ro",
            "sqlite:///a#b",
            "sqlite:///a%00b",
            f"mysql://me:{SECRET}@host/x",
            f"postgresql+asyncpg://me:{SECRET}@host/x",
            f"postgresql://me:{SECRET}@{SECRET}@host/x",
            f"postgresql://me:a/{SECRET}@host/x",
            f"postgresql://me:a?{SECRET}@host/x",
            f"postgresql://me:a#{SECRET}@host/x",
            f"postgresql://me:a {SECRET}@host/x",
            f"postgresql://host/x?password={SECRET}@",
            f"postgresql://me:{SECRET}@[host/x",
        ],
    )
    async def test_what_is_none(self, url: str) -> None:
        error = await refusal(url)
        assert isinstance(error, InputError)
        assert str(error).startswith("journal: ")
        assert SECRET not in str(error)

    @pytest.mark.parametrize(
        "url",
        [
            f"postgresql://me:{SECRET}@host:port/x",
            f"postgresql://me:{SECRET}@host:99999/x",
            f"postgresql://me:{SECRET}@127.0.0.1:99999/x",
            f"postgresql://me:{SECRET}@127.0.0.1:1/x?sslmode=perhaps",
            f"postgresql://127.0.0.1:1/x?password={SECRET}",
            f"postgresql://me:{SECRET}@127.0.0.1:1/x?sslmode=verify-full&sslrootcert=/none",
            f"postgresql://me:{SECRET}@127.0.0.1:1/x?port={SECRET}",
            f"postgresql://me:{SECRET}%00@127.0.0.1:1/x",
            f"postgresql://me:{SECRET}@127.0.0.1:1/x#{SECRET}",
        ],
    )
    async def test_what_no_client_can_use(self, url: str) -> None:
        error = await refusal(url)
        assert str(error).startswith("journal postgresql://")
        assert SECRET not in str(error)
        assert SECRET not in "".join(traceback.format_exception(error, limit=0))

    def test_several_hosts(self) -> None:
        address = read_address(f"postgresql://me:{SECRET}@a:1,b:2/x?target_session_attrs=any")
        assert str(address) == "postgresql://me@a:1,b:2/x"
        assert SECRET not in repr(address)

    def test_a_name_is_printable(self) -> None:
        path = Path(os.fsdecode(b"/tmp/\xff.db"))
        assert str(read_address(path)) == "/tmp/\\xff.db"
        assert read_address(sqlite_url(path)) == read_address(path)
