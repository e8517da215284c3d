"""A child process as its slot sees it: start, one line out, one line in, end.

Each child leads a session and a process group of its own, so that a signal to the group reaches
whatever the evaluator started, and Ctrl-C in the terminal reaches none of them.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from pydantic import ValidationError

from schemas.envelope import MAX_MESSAGE_BYTES
from spica_async.engine.own_files import own_settings
from spica_async.processes.child import child_environment
from spica_async.processes.logs import open_log
from workers.child import ChildGreeting
from workers.groups import live_members, signal_group
from workers.settings import ChildSettings

_EXIT_WAIT_SECONDS = 1.0
"""Between the end of a child's channel and the news of its exit; normally milliseconds."""
_GROUP_POLL_SECONDS = 0.02


class ChildStartError(Exception):
    """A child could not be brought to take requests."""


class ChildDiedError(Exception):
    """A child ended, or stopped making sense, while an answer was awaited.

    Without a message the child's exit status tells more: see `ChildProcess.explain`.
    """


class ChildProcess:
    """A running child. Made by `spawn_child`; must be ended with `end`."""

    def __init__(
        self,
        settings: ChildSettings,
        transport: asyncio.SubprocessTransport,
        exited: asyncio.Event,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._settings = settings
        self._transport = transport
        self._exited = exited
        self._reader = reader
        self._writer = writer

    @property
    def pid(self) -> int:
        """The child's process id, which is its process group's id as well."""
        return self._transport.get_pid()

    @property
    def has_exited(self) -> bool:
        """Whether the child itself has ended; what it started may still run."""
        return self._exited.is_set()

    async def ready(self) -> None:
        """Wait until the child takes requests.

        Raises:
            ChildStartError: the evaluator or its warm-up failed, or the child died or took more
                than `start_seconds`.
        """
        name, limit = self._settings.evaluator, self._settings.start_seconds
        try:
            async with asyncio.timeout(limit):
                greeting = ChildGreeting.model_validate_json(await self.receive())
        except TimeoutError as error:
            raise ChildStartError(
                f"{name}: no request taken {limit:g} s after the start"
            ) from error
        except ChildDiedError as death:
            raise ChildStartError(f"{name}: {await self.explain(death)}") from death
        except ValidationError as error:
            raise ChildStartError(f"{name}: it sent something that is no greeting") from error
        if greeting.error is not None:
            raise ChildStartError(f"{name}: {greeting.error}")

    async def send(self, document: str) -> None:
        """Write one line.

        Raises:
            ChildDiedError: the child does not listen any more.
        """
        try:
            self._writer.write(document.encode() + b"\n")
            await self._writer.drain()
        except ConnectionError as error:
            raise ChildDiedError from error

    async def receive(self) -> bytes:
        """Read one line; a wait that is cancelled loses nothing.

        Raises:
            ChildDiedError: the channel ended before a whole line came, or the line is too long.
        """
        try:
            return await self._reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            raise ChildDiedError("it sent a line without an end") from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ChildDiedError from error

    async def explain(self, death: ChildDiedError) -> str:
        """Tell what a child died of. To be asked before `end`, which would become the reason."""
        if str(death):
            return str(death)
        try:
            async with asyncio.timeout(_EXIT_WAIT_SECONDS):
                await self._exited.wait()
        except TimeoutError:
            return "it closed its channel"
        status = self._transport.get_returncode()
        if status is None or status >= 0:
            return f"it exited with status {status}"
        return f"it was ended by {signal.Signals(-status).name}"

    def kill(self) -> None:
        """Send SIGKILL to the whole process group, without waiting."""
        signal_group(self.pid, signal.SIGKILL)

    async def end(self, grace_seconds: float) -> None:
        """End the whole process group and reap the child: SIGTERM, after the grace SIGKILL.

        May be called again, also after a call that was cancelled.
        """
        if grace_seconds > 0:
            signal_group(self.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(grace_seconds):
                    await self._group_end()
            except TimeoutError:
                pass  # That is what SIGKILL is for.
        self.kill()
        await self._group_end()
        self._writer.close()
        self._transport.close()

    async def _group_end(self) -> None:
        await self._exited.wait()
        while any(live_members(self.pid)):  # noqa: ASYNC110 - nobody tells of others' children
            await asyncio.sleep(_GROUP_POLL_SECONDS)


class _ExitProtocol(asyncio.SubprocessProtocol):
    """Ends the reading side on exit: what the child started may hold the channel's other end."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self.exited = asyncio.Event()
        self._reader = reader

    def process_exited(self) -> None:
        self.exited.set()
        self._reader.feed_eof()


async def spawn_child(settings: ChildSettings, log_path: Path | None) -> ChildProcess:
    """Start a child; `ChildProcess.ready` tells when it has imported its evaluator."""
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    with ExitStack() as handed_over, ExitStack() as on_failure:
        handed_over.callback(theirs.close)
        on_failure.callback(ours.close)
        output: int = subprocess.DEVNULL
        if log_path is not None:
            output = handed_over.enter_context(await open_log(log_path)).fileno()
        reader, writer = await asyncio.open_connection(sock=ours, limit=MAX_MESSAGE_BYTES)
        on_failure.callback(writer.close)
        # Last of all that waits: cancelled in here, asyncio kills and reaps the process itself.
        transport, protocol = await loop.subprocess_exec(
            lambda: _ExitProtocol(reader),
            # -P: the folder that the worker was started in must not shadow any module.
            *(sys.executable, "-P", "-X", "faulthandler", "-m", "workers.child"),
            *(str(theirs.fileno()), settings.evaluator),
            *([] if settings.warm_up is None else [settings.warm_up]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
            env=_environment(settings),
        )
        on_failure.pop_all()
    return ChildProcess(settings, transport, protocol.exited, reader, writer)


def _environment(settings: ChildSettings) -> dict[str, str]:
    return child_environment(
        settings.import_paths,
        **own_settings(),
        # Under kv_router the engine otherwise logs a line per request.
        DYN_LOG="error",
        RUST_LOG="error",
        NUMEXPR_NUM_THREADS="1",
    )
