"""A RabbitMQ node of our own, which a test may stop, kill, choke and start again.

It runs Debian's `rabbitmq-server` as the calling user, on loopback and on ports of its own, and
keeps all it writes in one temporary folder. A node never outlives the process that started it.
"""

from __future__ import annotations

import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

SCRIPTS: Final = Path("/usr/lib/rabbitmq/bin")
"""The package's own scripts; the wrappers on PATH switch the user."""
START_SECONDS: Final = 90
STOP_SECONDS: Final = 60
CONTROL_SECONDS: Final = 60

# Leads the node's process group, so that all of it ends together: when the server ends, and when
# nobody holds the other end of stdin any more, as after a SIGKILL of the caller.
_LEADER: Final = """
exec 3<&0
test -z "$FILE_LIMIT" || ulimit -n "$FILE_LIMIT" || exit 1
epmd -port "$ERL_EPMD_PORT" -address 127.0.0.1 &
"$SERVER" &
server=$!
{ read -r _ <&3; kill -KILL 0; } &
wait "$server"
kill -KILL 0
"""

# As Erlang terms: working out a rabbitmq.conf takes the node a second and a half.
_CONFIG: Final = """
[{{rabbit, [
  {{tcp_listeners, [{{"127.0.0.1", {port}}}]}},
  {{consumer_timeout, {consumer_timeout_ms}}},
  {{channel_tick_interval, {tick_ms}}},
  {{vm_memory_high_watermark, {{absolute, {memory_limit}}}}},
  {{disk_free_limit, 50000000}}
]}}].
"""

# How often a channel looks whether a consumer has held a message for too long. RabbitMQ's own
# minute is shortened for a node whose consumers may not hold one for that long.
_LONGEST_TICK_SECONDS: Final = 60.0

# As in vm_memory_high_watermark, in bytes; and a limit that any node is above.
_MEMORY_LIMIT: Final = 2 * 1024**3
_NO_MEMORY: Final = 1


class BrokerError(Exception):
    """The node did not come up, did not end, or refused a command; says why."""


def why_missing() -> str | None:
    """What this machine lacks for running a node; None when it lacks nothing."""
    for program in (str(SCRIPTS / "rabbitmq-server"), "epmd", "erl_call"):
        if shutil.which(program) is None:
            return f"Debian's package rabbitmq-server is not installed: there is no {program}"
    return None


def free_port() -> int:
    """A free TCP port below those that the kernel gives to outgoing connections.

    So a client that dials while nobody listens never gets the very port as its own.
    """
    while not _is_free(port := random.randrange(20_000, 32_000)):
        pass
    return port


def _free_ports(count: int) -> tuple[int, ...]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return tuple(ports)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@dataclass(frozen=True, slots=True)
class VirtualHost:
    """A virtual host of a node, and the address at which `guest` may do everything in it."""

    node: BrokerNode
    name: str
    url: str


class BrokerNode:
    """One private node. A context manager that starts it, and in the end kills and forgets it.

    Methods block and may be called from any thread, one at a time. After `stop` or `kill`, `start`
    continues on the same port with the same data.

    `consumer_timeout_seconds` is how long a consumer may hold a message; `file_limit` is the number
    of files and sockets that the node may have open (none: as here).
    """

    def __init__(
        self, *, consumer_timeout_seconds: float = 1800, file_limit: int | None = None
    ) -> None:
        self.port, self._distribution_port, self._epmd_port = self._ports = _free_ports(3)
        self.folder = Path(tempfile.mkdtemp(prefix="spica-broker-"))
        self._pid_file = self.folder / "node.pid"
        self._file_limit = file_limit
        self._leader: subprocess.Popen[bytes] | None = None
        self._name = f"spica-{secrets.token_hex(4)}@localhost"
        self._environment = self._prepare(consumer_timeout_seconds)

    def __enter__(self) -> Self:
        try:
            self.start()
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

    @property
    def running(self) -> bool:
        """Whether the node's processes live."""
        return self._leader is not None and self._leader.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the Erlang machine."""
        return int(self._pid_file.read_text())

    def start(self) -> None:
        """Start the node and wait until it serves; no effect when it runs.

        Raises:
            BrokerError: it ended or was not ready in time, with the end of its log.
        """
        if self.running:
            return
        self._end()
        self._pid_file.unlink(missing_ok=True)
        with (self.folder / "console.log").open("ab") as console:
            leader = self._leader = subprocess.Popen(
                ["/bin/sh", "-c", _LEADER],
                env=self._environment,
                cwd=self.folder,
                stdin=subprocess.PIPE,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while (why_not := self._why_not_ready()) is not None:
            if leader.poll() is not None:
                raise BrokerError(f"the node ended while starting:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self._end()
                raise BrokerError(f"not ready in {START_SECONDS} s: {why_not}\n{self.log_tail()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the node in good order; no effect when it does not run.

        Raises:
            BrokerError: it did not end in time, and was killed.
        """
        if not self.running:
            self._end()
            return
        assert self._leader is not None
        os.kill(self.pid, signal.SIGTERM)
        try:
            self._leader.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise BrokerError(f"did not stop in {STOP_SECONDS} s:\n{self.log_tail()}") from None
        finally:
            self._end()

    def kill(self) -> None:
        """SIGKILL every process of the node; returns once its ports are free again.

        No effect when it does not run. What RabbitMQ 3.10 itself would lose is written out before:
        it notes the name of a new quorum queue half a second late, and a queue whose name was lost
        never gets a leader again.

        Raises:
            BrokerError: the node did not answer; it is killed all the same.
        """
        try:
            if self.running:
                self.evaluate("[ok = dets:sync(Table) || Table <- dets:all()]")
        finally:
            self._end()

    def close(self) -> None:
        """Kill the node and remove its folder."""
        self._end()
        shutil.rmtree(self.folder)

    def recover(self) -> None:
        """Start the node when it does not run, and take back what keeps it from serving."""
        if self.running:
            self.set_memory_alarm(on=False)
        else:
            self.start()

    def url(self, *, user: str = "guest", password: str = "guest", vhost: str = "/") -> str:
        """The address for a client; `guest` may do everything."""
        login = f"{quote(user, safe='')}:{quote(password, safe='')}"
        return f"amqp://{login}@127.0.0.1:{self.port}/{quote(vhost, safe='')}"

    def log_tail(self, lines: int = 40) -> str:
        """The end of what the node logged, and of what it printed."""
        logs = [self.folder / "node.log", self.folder / "console.log"]
        texts = [log.read_text(errors="replace") for log in logs if log.exists()]
        return "\n".join("\n".join(text.splitlines()[-lines:]) for text in texts)

    def ctl(self, *arguments: str) -> str:
        """Run `rabbitmqctl` against the node (a second or two) and return what it prints.

        Raises:
            BrokerError: it failed.
        """
        return self.run([str(SCRIPTS / "rabbitmqctl"), "--quiet", *arguments])

    def evaluate(self, expressions: str) -> str:
        """Let the node evaluate Erlang expressions (milliseconds); returns the last one's value.

        Raises:
            BrokerError: the node is not there, or evaluation failed.
        """
        address = f"127.0.0.1:{self._distribution_port}"
        # A name of our own: `-r` draws the same one for a whole second, and the node refuses a name
        # whose connection before is still being taken down.
        name = f"caller-{secrets.token_hex(8)}"
        command = ["erl_call", "-h", name, "-address", address, "-e"]
        answer = self.run(command, f"{expressions}.\n")
        value = re.fullmatch(r"\{ok, (.*)\}\s*", answer, re.DOTALL)
        if value is None:
            raise BrokerError(f"{expressions} gave {answer}")
        return value[1]

    def set_memory_alarm(self, *, on: bool) -> None:
        """Raise or clear the alarm that blocks who publishes; returns once it stands so."""
        limit = _NO_MEMORY if on else _MEMORY_LIMIT
        self.evaluate(f"ok = vm_memory_monitor:set_vm_memory_high_watermark({{absolute, {limit}}})")
        deadline = time.monotonic() + CONTROL_SECONDS
        while ("memory" in self.evaluate("rabbit_alarm:get_alarms()")) != on:
            if time.monotonic() > deadline:
                raise BrokerError(f"the memory alarm did not turn {'on' if on else 'off'}")
            time.sleep(0.02)

    def add_vhost(self, name: str) -> None:
        """Add a virtual host, in which `guest` may do everything."""
        vhost = _binary(name)
        self.evaluate(
            f'ok = rabbit_vhost:add({vhost}, <<"tests">>), '
            f'rabbit_auth_backend_internal:set_permissions(<<"guest">>, {vhost},'
            ' <<".*">>, <<".*">>, <<".*">>, <<"tests">>)'
        )

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host with all it holds; its connections are closed."""
        self.evaluate(f'rabbit_vhost:delete({_binary(name)}, <<"tests">>)')

    def add_user(
        self,
        name: str,
        password: str,
        *,
        vhost: str = "/",
        configure: str = "",
        write: str = "",
        read: str = "",
    ) -> None:
        """Add a user, or replace it, with patterns of what it may do in one virtual host.

        An empty pattern allows nothing.
        """
        user = _binary(name)
        patterns = ", ".join(map(_binary, (configure, write, read)))
        self.evaluate(
            f"rabbit_auth_backend_internal:put_user(#{{name => {user}, password =>"
            f' {_binary(password)}, tags => <<>>}}, <<"tests">>), '
            f"ok = rabbit_auth_backend_internal:set_permissions({user}, {_binary(vhost)},"
            f' {patterns}, <<"tests">>)'
        )

    def listen_for_tls(self, pki: Path, name: str = "server", *, asks: bool = False) -> int:
        """Listen for TLS as `name` of `make_pki` until the node ends; returns the port.

        One that `asks` takes nobody without a certificate.
        """
        port = free_port()
        files = {"cacertfile": "ca.pem", "certfile": f"{name}.pem", "keyfile": f"{name}.key"}
        options = [f'{{{kind}, "{pki / file}"}}' for kind, file in files.items()]
        options.append(f"{{verify, {'verify_peer' if asks else 'verify_none'}}}")
        options.append(f"{{fail_if_no_peer_cert, {str(asks).lower()}}}")
        self.evaluate(
            "{ok, _} = application:ensure_all_started(ssl),"
            f' rabbit_networking:start_ssl_listener({{"127.0.0.1", {port}, auto}},'
            f" [{', '.join(options)}], 1)"
        )
        return port

    def close_connections(self, name_prefix: str = "") -> int:
        """Close, as an operator does, the clients' connections whose name begins so; how many.

        A connection that its client has not named has an empty name.
        """
        # A connection may go, and its process with it, between being listed and being asked.
        closed = self.evaluate(
            "length([Pid || Pid <- rabbit_networking:connections(),"
            " [{client_properties, Properties}] <-"
            " [catch rabbit_networking:connection_info(Pid, [client_properties])],"
            ' Name <- [case lists:keyfind(<<"connection_name">>, 1, Properties) of'
            " {_, longstr, Given} -> Given; false -> <<>> end],"
            f" string:prefix(Name, {_binary(name_prefix)}) =/= nomatch,"
            ' ok =:= rabbit_networking:close_connection(Pid, "closed by a test")])'
        )
        return int(closed)

    def _end(self) -> None:
        if self._leader is None:
            return
        if self._leader.poll() is None:
            os.killpg(self._leader.pid, signal.SIGKILL)
        self._leader.wait()
        # Only the leader is a child of ours; of the others the ports show that they are gone.
        deadline = time.monotonic() + STOP_SECONDS
        while not all(map(_is_free, self._ports)):
            if time.monotonic() > deadline:
                raise BrokerError(f"some of the ports {self._ports} are still taken")
            time.sleep(0.01)
        assert self._leader.stdin is not None
        self._leader.stdin.close()
        self._leader = None

    def _why_not_ready(self) -> str | None:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            self.evaluate("ok = rabbit:await_startup()")
        except (OSError, BrokerError) as error:
            return str(error)
        return None

    def run(self, command: list[str], stdin: str = "") -> str:
        done = subprocess.run(
            command,
            input=stdin,
            env=self._environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=CONTROL_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            output = done.stderr or done.stdout
            raise BrokerError(f"{command[0]} ended with {done.returncode}: {output}")
        return done.stdout

    def _prepare(self, consumer_timeout_seconds: float) -> dict[str, str]:
        folder = self.folder
        config = _CONFIG.format(
            port=self.port,
            consumer_timeout_ms=int(consumer_timeout_seconds * 1000),
            tick_ms=int(min(consumer_timeout_seconds / 4, _LONGEST_TICK_SECONDS) * 1000),
            memory_limit=_MEMORY_LIMIT,
        )
        (folder / "rabbitmq.config").write_text(config)
        (folder / "plugins").write_text("[].\n")
        # The node reads of every plugin what it is, used or not, which takes it two seconds of CPU.
        parts = folder / "parts"
        parts.mkdir()
        for part in SCRIPTS.parent.glob("lib/rabbitmq_server-*/plugins/*"):
            if not part.name.startswith("rabbitmq_") or part.name.startswith("rabbitmq_prelaunch"):
                (parts / part.name).symlink_to(part)
        cookie = folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(folder),
            "SERVER": str(SCRIPTS / "rabbitmq-server"),
            "FILE_LIMIT": "" if self._file_limit is None else str(self._file_limit),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP_SECONDS": "0",
            "RABBITMQ_NODENAME": self._name,
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            # Names that do not exist keep the machine's own settings out.
            "RABBITMQ_CONF_ENV_FILE": str(folder / "no-environment"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "no-advanced.config"),
            "RABBITMQ_CONFIG_FILES": str(folder / "no-conf.d"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PLUGINS_DIR": str(parts),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_LOGS": str(folder / "node.log"),
            "RABBITMQ_PID_FILE": str(self._pid_file),
        }


def _binary(text: str) -> str:
    """Text as an Erlang binary."""
    return f"<<{','.join(map(str, text.encode()))}>>"
