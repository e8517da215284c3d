"""One running optimizer process and the exchange with it, without blocking the event loop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from spica_async.optimizer.types import Study
from spica_async.optimizer.wire import (
    MAX_ANSWER_BYTES,
    AskRequest,
    Costs,
    Opening,
    PrepareRequest,
    encode,
)
from spica_async.processes.child import HEADER_BYTES, child_environment, frame, payload_length
from spica_async.processes.child_end import end_child
from spica_async.processes.logs import open_log
from spica_async.processes.memory import mebibytes, outgrown


class DesignerFaultError(Exception):
    """The optimizer process gave no usable answer; `detail` is its traceback, if it sent one."""

    def __init__(self, reason: str, detail: str | None = None) -> None:
        super().__init__(reason)
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Answer:
    """What an optimizer process answers an ask with.

    Attributes:
        assignments: One JSON value per suggestion, not yet checked.
        costs: What the process has cost by now.
    """

    assignments: list[object]
    costs: Costs


_costs = TypeAdapter(Costs)


class DesignerChannel:
    """Owns one optimizer process, from `start` to `kill`."""

    def __init__(self, process: Process, memory_bytes: int) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the optimizer process needs pipes for stdin and stdout")
        self._process = process
        self._requests = process.stdin
        self._answers = process.stdout
        self._outgrown: str | None = None
        self._watching = asyncio.create_task(self._watch(memory_bytes))
        # Of the frame whose header has been read; reading may be given up in between.
        self._length: int | None = None

    @classmethod
    async def start(
        cls, study: Study, factory: str, *, memory_bytes: int, log_path: Path | None = None
    ) -> Self:
        """Starts a process that builds the designer of `study` without being waited for.

        Args:
            study: What the process is to search.
            factory: Import path of a `DesignerFactory`, as `module:name`.
            memory_bytes: Resident memory at which it is ended, whatever it is doing.
            log_path: Where its stderr is appended; nowhere if None.

        Raises:
            OSError: If the operating system cannot start a process, or the log cannot be written.
        """
        started = time.monotonic()
        with await open_log(log_path) as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "spica_async.optimizer.child",
                factory,
                stdin=PIPE,
                stdout=PIPE,
                stderr=stderr,
                env=_environment(),
                # A group of its own: signals from the terminal pass it by, and it can be killed
                # whole.
                start_new_session=True,
            )
        channel = cls(process, memory_bytes)
        channel._send(Opening(study, started))
        return channel

    @property
    def pid(self) -> int:
        """The process id, which is its process group's id too."""
        return self._process.pid

    async def suggest(self, request: AskRequest) -> Answer:
        """Returns what the process proposes.

        Raises:
            DesignerFaultError: If the process raised, ended, or wrote something else.
        """
        self._send(request)
        while True:
            match await self._read():
                case {"prepared": True}:
                    continue  # What was asked for before this, and is of no interest any more.
                case {"assignments": list(assignments), "costs": costs}:
                    try:
                        return Answer(assignments, _costs.validate_python(costs))
                    except ValidationError as error:
                        raise DesignerFaultError("the optimizer process wrote garbage") from error
                case message:
                    raise _fault_of(message)

    def prepare(self, answered: AskRequest) -> None:
        """Has the process prepare for the ask after `answered`, without being waited for."""
        self._send(PrepareRequest(answered))

    async def is_prepared(self) -> bool:
        """Returns at once whether the process has done all that `prepare` asked of it.

        Raises:
            DesignerFaultError: If it failed instead.
        """
        try:
            async with asyncio.timeout(0):
                message = await self._read()
        except TimeoutError:
            return False
        if message != {"prepared": True}:
            raise _fault_of(message)
        return True

    async def _read(self) -> object:
        try:
            if self._length is None:
                self._length = payload_length(await self._answers.readexactly(HEADER_BYTES))
            if self._length > MAX_ANSWER_BYTES:
                raise DesignerFaultError("the optimizer process wrote garbage")
            payload = await self._answers.readexactly(self._length)
        except asyncio.IncompleteReadError as error:
            code = await self._process.wait()
            reason = self._outgrown or f"ended with exit code {code}"
            raise DesignerFaultError(f"the optimizer process {reason}") from error
        self._length = None
        try:
            message: object = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise DesignerFaultError("the optimizer process wrote garbage") from error
        return message

    async def kill(self) -> None:
        """Kills the process and its group at once and reaps it, though the caller be cancelled."""
        self._watching.cancel()
        await end_child(self._process)

    async def _watch(self, memory_bytes: int) -> None:
        """End the process once it has grown too large; what waits for it then hears of that."""
        resident = await outgrown(self.pid, memory_bytes)
        self._outgrown = f"took {mebibytes(resident)} of memory, {mebibytes(memory_bytes)} allowed"
        with suppress(ProcessLookupError):  # It has just ended by itself.
            os.killpg(self.pid, signal.SIGKILL)

    def _send(self, message: Opening | AskRequest | PrepareRequest) -> None:
        # Not drained: one request at a time is outstanding, and a process that ended is noticed
        # by its missing answer, which may still hold the reason.
        self._requests.write(frame(encode(message)))


def _fault_of(message: object) -> DesignerFaultError:
    """What is wrong with a process that answers this, which is no answer."""
    match message:
        case {"fault": str(fault), "detail": str(detail)}:
            return DesignerFaultError(f"the optimizer raised {fault}", detail)
        case _:
            return DesignerFaultError("the optimizer process wrote garbage")


def _environment() -> dict[str, str]:
    """Returns the environment of an optimizer process.

    One thread each, since branches and replays share the cores, and since the order of a
    parallel sum could change a proposal.
    """
    xla_flags = (
        os.environ.get("XLA_FLAGS", ""),
        "--xla_cpu_multi_thread_eigen=false",
        "intra_op_parallelism_threads=1",
    )
    return child_environment(
        # The order of a set of strings must not differ between two processes.
        PYTHONHASHSEED="0",
        # A run that makes warnings errors means ours, not those of the optimizer's libraries.
        PYTHONWARNINGS="ignore",
        JAX_PLATFORMS="cpu",
        XLA_FLAGS=" ".join(flag for flag in xla_flags if flag),
    )
