"""Child processes of ours: each is a module, has a channel to us, and leads a group of its own.

The channel is a socket that the child has as its stdin. Frames pass both ways, a four-byte
big-endian length and then the payload, so that what a broken child writes is parsed and never
executed. What it writes to stdout and stderr goes to a file. Signals from the terminal pass the
group by, and a signal to the group reaches whatever the child has started. `parent` is the other
side.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Self, cast

import structlog

from spica_async.processes.groups import (
    group_resident_bytes,
    live_members,
    resident_bytes,
    signal_group,
)
from spica_async.processes.memory import mebibytes
from spica_async.processes.parent import HEADER_BYTES, frame, payload_length
from spica_async.processes.threads import DaemonThreads, computed

_BROKER_VARIABLES: Final = "SPICA_BUS"
_EXIT_SECONDS: Final = 1.0
"""Between the end of a child's channel and the notice of its exit; normally milliseconds."""
_REAP_SECONDS: Final = 10.0
"""A process that is killed ends at once, unless it waits for a disk that hangs."""
_GROUP_POLL_SECONDS: Final = 0.02
_LOG_OPENING_SECONDS: Final = 5.0
_LARGE_BYTES: Final = 64 * 2**10
# Of their own: a disk that hangs may keep them all.
_LOG_THREADS: Final = DaemonThreads(4, "logs")

log = structlog.get_logger(__name__)


class ChildDiedError(Exception):
    """A child ended or stopped making sense; the message completes a sentence about it."""


class ChildOutgrownError(ChildDiedError):
    """A child was killed since it took more memory than it may."""


class Child:
    """A running child. Made by `start`; must be ended with `end`."""

    def __init__(
        self,
        transport: asyncio.SubprocessTransport,
        exited: asyncio.Event,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        max_answer_bytes: int,
    ) -> None:
        self._transport = transport
        self._exited = exited
        self._reader = reader
        self._writer = writer
        self._max_answer_bytes = max_answer_bytes
        # Of the frame whose header has been read; reading may be given up in between.
        self._length: int | None = None
        self._outgrown: str | None = None
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def start(
        cls,
        module: str,
        *arguments: str,
        environment: Mapping[str, str],
        output: BinaryIO,
        max_answer_bytes: int,
    ) -> Self:
        """Start a child without waiting until it listens.

        Args:
            module: What it runs, as `python -m` does.
            arguments: For the module.
            environment: The child's whole environment; see `child_environment`.
            output: Where its stdout and stderr go.
            max_answer_bytes: A longer answer is taken for nonsense.

        Raises:
            OSError: The operating system cannot start a process.
        """
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as on_failure:
            on_failure.callback(ours.close)
            reader, writer = await asyncio.open_connection(sock=ours)
            on_failure.callback(writer.close)
            # Last of all that waits: cancelled in here, asyncio kills and reaps the child itself.
            transport, protocol = await asyncio.get_running_loop().subprocess_exec(
                lambda: _ExitProtocol(writer),
                # -P: the folder that we were started in must not shadow any module.
                *(sys.executable, "-P", "-X", "faulthandler", "-m", module, *arguments),
                stdin=theirs.fileno(),
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=environment,
            )
            on_failure.pop_all()
        return cls(transport, protocol.exited, reader, writer, max_answer_bytes)

    @property
    def pid(self) -> int:
        """The child's process id, which is its process group's id as well."""
        return self._transport.get_pid()

    @property
    def has_exited(self) -> bool:
        """Whether the child itself has ended; what it started may still run."""
        return self._exited.is_set()

    def send(self, payload: bytes) -> None:
        """Send one frame. A child that does not listen any more is noticed by `receive`."""
        self._writer.write(frame(payload))

    async def receive(self) -> bytes:
        """Wait for one frame; a wait that is cancelled loses nothing.

        Raises:
            ChildDiedError: There will be none, or it is too long.
        """
        try:
            if self._length is None:
                self._length = payload_length(await self._reader.readexactly(HEADER_BYTES))
            if self._length > self._max_answer_bytes:
                raise ChildDiedError("wrote garbage")
            payload = await self._reader.readexactly(self._length)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise await self._death() from error
        self._length = None
        return payload

    async def receive_json(self) -> object:
        """Wait for one frame of JSON; a large one is parsed in a thread.

        Raises:
            ChildDiedError: There will be none, or it is too long, or it is no JSON.
        """
        payload = await self.receive()
        try:
            parsed: object = (
                await computed(json.loads, payload)
                if len(payload) > _LARGE_BYTES
                else json.loads(payload)
            )
        except (ValueError, RecursionError) as error:
            raise ChildDiedError("wrote garbage") from error
        return parsed

    def watch_memory(
        self, limit_bytes: int, *, of_group: bool = False, sample_seconds: float = 0.5
    ) -> asyncio.Task[None]:
        """Kill the child once it has grown too large; `receive` then raises what it took.

        Args:
            limit_bytes: What it may have resident.
            of_group: Whether what the child has started counts as well.
            sample_seconds: Between two looks at it.

        Returns:
            The watch, which can be cancelled; the child's end cancels it.
        """

        async def watch() -> None:
            resident = 0
            while resident <= limit_bytes:
                await asyncio.sleep(sample_seconds)
                resident = (group_resident_bytes if of_group else resident_bytes)(self.pid)
            self._outgrown = (
                f"took {mebibytes(resident)} of memory, {mebibytes(limit_bytes)} allowed"
            )
            self.kill()

        self._watching = asyncio.create_task(watch())
        return self._watching

    def kill(self) -> None:
        """Send SIGKILL to the whole process group, without waiting."""
        self._signal(signal.SIGKILL)

    async def end(self, grace_seconds: float = 0.0, *, reap_seconds: float = _REAP_SECONDS) -> None:
        """End the whole process group and reap the child: SIGTERM, after the grace SIGKILL.

        May be called again, also after a call that was cancelled.

        Args:
            grace_seconds: Between the two signals; with none SIGKILL comes at once.
            reap_seconds: After them, what has still not ended is left behind.
        """
        if self._watching is not None:
            self._watching.cancel()
        if grace_seconds > 0:
            self._signal(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await self._group_end()
        self.kill()
        try:
            async with asyncio.timeout(reap_seconds):
                await self._group_end()
        except TimeoutError:
            log.warning("child.does_not_end", pid=self.pid, seconds=reap_seconds)
        self._writer.close()
        self._transport.close()

    def _signal(self, number: signal.Signals) -> None:
        # Once the child has been reaped, the group's number may be another's.
        if not self.has_exited:
            signal_group(self.pid, number)

    async def _group_end(self) -> None:
        await self._exited.wait()
        while any(live_members(self.pid)):  # noqa: ASYNC110  # nobody reports others' children
            await asyncio.sleep(_GROUP_POLL_SECONDS)

    async def _death(self) -> ChildDiedError:
        """What the child, whose channel has ended, has died of."""
        if self._outgrown is not None:
            return ChildOutgrownError(self._outgrown)
        try:
            async with asyncio.timeout(_EXIT_SECONDS):
                await self._exited.wait()
        except TimeoutError:
            return ChildDiedError("closed its channel")
        status = self._transport.get_returncode()
        if status is None or status >= 0:
            return ChildDiedError(f"exited with status {status}")
        return ChildDiedError(f"was ended by {signal.Signals(-status).name}")


class _ExitProtocol(asyncio.SubprocessProtocol):
    """Ends what a child has left behind when it exits, and the channel that may hold open."""

    def __init__(self, channel: asyncio.StreamWriter) -> None:
        self.exited = asyncio.Event()
        self._channel = channel
        self._pid: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pid = cast("asyncio.SubprocessTransport", transport).get_pid()

    def process_exited(self) -> None:
        self.exited.set()
        if self._pid is not None:
            signal_group(self._pid, signal.SIGKILL)
        # What the child has written before is read until then.
        asyncio.get_running_loop().call_later(_EXIT_SECONDS, self._channel.transport.abort)


def child_environment(import_paths: Iterable[str] = (), **variables: str) -> dict[str, str]:
    """This process's environment for a child that imports just as it does, on one thread.

    Args:
        import_paths: Searched before this process's own `sys.path`.
        variables: Set in addition, or instead.
    """
    # An empty entry of sys.path stands for the current folder.
    own_paths = (path or str(Path.cwd()) for path in sys.path)
    # A child loads code that has no business with the broker's address and password.
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(_BROKER_VARIABLES)}
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join([*import_paths, *own_paths]),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        **variables,
    }


async def open_log(path: Path | None, patience_seconds: float = _LOG_OPENING_SECONDS) -> BinaryIO:
    """A file for a child to append to; one that keeps nothing without a path, or if a disk hangs.

    Raises:
        OSError: It cannot be opened.
    """
    if path is not None:
        opening = _LOG_THREADS.submit(path.open, "ab")
        try:
            async with asyncio.timeout(patience_seconds):
                return cast("BinaryIO", await asyncio.wrap_future(opening))
        except TimeoutError:
            opening.add_done_callback(_close)
            log.warning("child.log_hangs", path=str(path), seconds=patience_seconds)
        except asyncio.CancelledError:
            opening.add_done_callback(_close)
            raise
    return Path(os.devnull).open("ab")  # noqa: ASYNC230  # no disk is asked


def _close(opening: Future[Any]) -> None:
    """Close what is opened too late for anybody to write to it."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
