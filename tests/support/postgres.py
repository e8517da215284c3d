"""A PostgreSQL server of our own, which a test may stop, kill and start again.

It runs Debian's `postgres` on loopback and on a port of its own, and keeps all it writes in one
temporary folder. Called by root it runs as Debian's user `postgres`, for it refuses root. A server
never outlives the process that started it.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import asyncpg
import psutil
from support.broker import free_port

_T = TypeVar("_T")
_INSTALLED: Final = Path("/usr/lib/postgresql")
_USER: Final = "postgres"
_SECONDS: Final = 60

GUARDED: Final = "guarded"
"""A user that has to give its password."""
PASSWORD: Final = "p@ss/w:rd%?#"
"""The password of that user."""

# All but those that say of what version the others are.
_TABLES_TO_EMPTY: Final = """
SELECT string_agg(format('%I', tablename), ', ') FROM pg_tables
WHERE schemaname = 'public' AND tablename NOT LIKE '%version%'
"""

# Everybody else may do everything.
_RIGHTS: Final = f"""
host all {GUARDED} 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
"""

# Stands between the server and us, so that the server ends when nobody holds the other end of stdin
# any more, as after a SIGKILL of the caller.
_LEADER: Final = """
exec 3<&0
"$@" </dev/null 3<&- &
server=$!
{ read -r _ <&3; kill -QUIT "$server"; } &
wait "$server"
kill $! 2>/dev/null
"""


OpensTables = Callable[[str], AbstractAsyncContextManager[object]]
"""Opens what is kept in the database at an address, and makes its tables where there are none."""


class PostgresError(Exception):
    """The server did not come up or did not end; says why."""


def programs() -> Path | None:
    """Where the programs of the newest version are; None when none is installed."""
    found = sorted(_INSTALLED.glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    return found[-1].parent if found else None


def why_missing() -> str | None:
    """What this machine lacks for running a server; None when it lacks nothing."""
    if programs() is None:
        return f"Debian's package postgresql is not installed: nothing is in {_INSTALLED}"
    return None


class PostgresNode:
    """One private server. A context manager that starts it, and in the end kills and forgets it.

    One that is `durable` waits for the disk.

    Methods block. After `stop` or `kill`, `start` continues on the same port with the same data.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._durable = durable
        found = programs()
        if found is None:
            raise PostgresError(str(why_missing()))
        self.port = free_port()
        self._programs = found
        self._folder = Path(tempfile.mkdtemp(prefix="spica-postgres-"))
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            entry = pwd.getpwnam(_USER)
            os.chown(self._folder, entry.pw_uid, entry.pw_gid)
            self._as = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
        self._data = self._folder / "data"
        self._log = self._folder / "log"
        self._leader: subprocess.Popen[bytes] | None = None
        self._emptied: dict[OpensTables, str] = {}

    def __enter__(self) -> Self:
        try:
            self._initialize()
            self.start()
            password = PASSWORD.replace("'", "''")
            self.query(f"CREATE ROLE {GUARDED} LOGIN PASSWORD '{password}'")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def url(self, database: str = "postgres", *, user: str = "spica", password: str = "") -> str:
        """Where a client finds a database."""
        secret = f":{quote(password, safe='')}" if password else ""
        return f"postgresql://{user}{secret}@127.0.0.1:{self.port}/{database}"

    def add_database(self) -> str:
        """Make an empty database; returns its name."""
        name = f"journal-{secrets.token_hex(4)}"
        # Copied file by file it takes half the time.
        self.query(f'CREATE DATABASE "{name}" STRATEGY file_copy')
        return name

    def emptied_database(self, opens: OpensTables) -> str:
        """The name of a database that has only what `opens` makes of an empty one.

        It is the same one each time, since a database takes long to make and to remove.
        """
        if opens in self._emptied:
            name = self._emptied[opens]
            ((tables,),) = self.query(_TABLES_TO_EMPTY, name)
            self.query(f"TRUNCATE {tables} RESTART IDENTITY", name)
            return name
        name = self._emptied[opens] = self.add_database()
        _in_thread(_open_once(opens, self.url(name)))
        return name

    def query(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Have a statement executed; returns the rows."""
        return _in_thread(self._query(statement, database))

    async def _query(self, statement: str, database: str) -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(
            self.url(database), ssl=False, timeout=_SECONDS, command_timeout=_SECONDS
        )
        try:
            return [tuple(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    def use_tls(self, pki: Path, name: str = "server") -> None:
        """Speak TLS as `name` of `make_pki` to each client that asks for it from now on."""
        for setting, source in (
            ("ssl_cert_file", f"{name}.pem"),
            ("ssl_key_file", f"{name}.key"),
            ("ssl_ca_file", "ca.pem"),
        ):
            copy = self._data / f"tls-{source}"
            shutil.copyfile(pki / source, copy)
            copy.chmod(0o600)
            if self._as:
                os.chown(copy, self._as["user"], self._as["group"])
            self.query(f"ALTER SYSTEM SET {setting} = '{copy}'")
        self._set("ssl", "on")

    def use_no_tls(self) -> None:
        """Refuse TLS, as it does in the beginning."""
        self._set("ssl", "off")

    def _set(self, setting: str, value: str) -> None:
        """Change a setting, and wait until new connections have it."""
        self.query(f"ALTER SYSTEM SET {setting} = {value}")
        self.query("SELECT pg_reload_conf()")
        until = time.monotonic() + _SECONDS
        while self.query(f"SHOW {setting}") != [(value,)]:
            if time.monotonic() > until:
                raise PostgresError(f"{setting} does not become {value}")
            time.sleep(0.02)

    def cut_connections(self, database: str) -> int:
        """End every client's connection to a database; returns how many there were."""
        return len(
            self.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                f"WHERE datname = '{database}'"
            )
        )

    def only_read(self, *, on: bool) -> None:
        """Take no writes from anybody, or take them again, without a restart."""
        self._set("default_transaction_read_only", "on" if on else "off")

    def restart_as_standby(self) -> None:
        """Restart as a server that only reads until it is promoted, as in a failover."""
        self.stop()
        (self._data / "standby.signal").touch()
        self.start()

    def promote(self) -> None:
        """Take writes again."""
        self.query("SELECT pg_promote()")

    def start(self) -> None:
        """Start the server, and wait until it takes connections."""
        settings = (
            f"unix_socket_directories={self._folder}",
            "listen_addresses=127.0.0.1",
            # Tests end processes, not machines, and would wait for the disk most of their time.
            f"fsync={'on' if self._durable else 'off'}",
        )
        options = [part for setting in settings for part in ("-c", setting)]
        server = [str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        with self._log.open("ab") as log:
            self._leader = subprocess.Popen(
                ["/bin/sh", "-c", _LEADER, "sh", *server, *options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
                **self._as,
            )
        until = time.monotonic() + _SECONDS
        while not self._is_ready():
            if self._leader.poll() is not None or time.monotonic() > until:
                raise PostgresError(f"the server did not come up: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def recover(self) -> None:
        """Bring the server into working order, whatever was done to it."""
        if self._leader is None or self._leader.poll() is not None:
            self.start()
        self.thaw()
        state = "pg_is_in_recovery(), current_setting('default_transaction_read_only')"
        ((standby, read_only),) = self.query(f"SELECT {state}")
        if standby:
            self.promote()
        if read_only == "on":
            self.only_read(on=False)

    def stop(self) -> None:
        """End the server as an operator would, and every connection with it."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End all of the server's processes at once, as a power cut would."""
        for server in self._processes()[:1]:
            # Otherwise it could fork meanwhile.
            server.suspend()
        processes = self._processes()
        for process in processes:
            with suppress(psutil.NoSuchProcess):  # It may have ended meanwhile.
                process.kill()
        self._join()
        # As long as one is left, the data has an owner.
        psutil.wait_procs(processes, timeout=_SECONDS)

    def freeze(self) -> None:
        """Let the server take connections and answer nothing."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):  # It may have ended meanwhile.
                process.suspend()

    def thaw(self) -> None:
        """Let it answer again."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):  # It may have ended meanwhile.
                process.resume()

    def close(self) -> None:
        """End the server and forget its data."""
        if self._leader is not None:
            self.thaw()
            self._end(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _to_server(self) -> tuple[str, ...]:
        return ("-h", "127.0.0.1", "-p", str(self.port), "-U", "spica")

    def _initialize(self) -> None:
        options = ("--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
        self._run("initdb", "-D", str(self._data), "-U", "spica", *options)
        (self._data / "pg_hba.conf").write_text(_RIGHTS)

    def _is_ready(self) -> bool:
        asked = subprocess.run(
            [str(self._programs / "pg_isready"), "-q", *self._to_server, "-d", "postgres"],
            check=False,
        )
        return asked.returncode == 0

    def _run(self, program: str, *arguments: str) -> str:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            [str(self._programs / program), *arguments],
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            **self._as,
        )
        if done.returncode:
            raise PostgresError(f"{program}: {done.stderr.strip()}")
        return done.stdout

    def _processes(self) -> list[psutil.Process]:
        """The server and those that it forked, the server first."""
        if self._leader is None or self._leader.poll() is not None:
            return []
        server = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        return [server, *server.children(recursive=True)]

    def _end(self, number: signal.Signals) -> None:
        for process in self._processes()[:1]:
            process.send_signal(number)
        self._join()

    def _join(self) -> None:
        leader, self._leader = self._leader, None
        if leader is not None:
            try:
                leader.wait(_SECONDS)
            finally:
                # Makes it end the server, if that has not ended yet.
                if leader.stdin is not None:
                    leader.stdin.close()


async def _open_once(opens: OpensTables, url: str) -> None:
    async with opens(url):
        pass


def _in_thread(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine to its end although the caller may be in an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
