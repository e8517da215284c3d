"""One running optimizer process and the exchange with it, without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
import time
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
from spica_async.processes.child import Child, ChildDiedError, child_environment, open_log
from spica_async.processes.shielded import shielded


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

    def __init__(self, child: Child) -> None:
        self._child = child

    @classmethod
    async def start(
        cls, study: Study, factory: str, *, memory_bytes: int, log_path: Path | None = None
    ) -> Self:
        """Starts a process that builds the designer of `study` without being waited for.

        Args:
            study: What the process is to search.
            factory: Import path of a `DesignerFactory`, as `module:name`.
            memory_bytes: Resident memory at which it is ended, whatever it is doing.
            log_path: Where its output is appended; nowhere if None.

        Raises:
            OSError: If the operating system cannot start a process, or the log cannot be written.
        """
        started = time.monotonic()
        with await open_log(log_path) as output:
            child = await Child.start(
                "spica_async.optimizer.child",
                factory,
                environment=_environment(),
                output=output,
                max_answer_bytes=MAX_ANSWER_BYTES,
            )
        child.watch_memory(memory_bytes)
        child.send(encode(Opening(study, started)))
        return cls(child)

    @property
    def pid(self) -> int:
        """The process id, which is its process group's id too."""
        return self._child.pid

    async def suggest(self, request: AskRequest) -> Answer:
        """Returns what the process proposes.

        Raises:
            DesignerFaultError: If the process raised, ended, or wrote something else.
        """
        self._child.send(encode(request))
        while True:
            match await self._receive():
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
        self._child.send(encode(PrepareRequest(answered)))

    async def is_prepared(self) -> bool:
        """Returns at once whether the process has done all that `prepare` asked of it.

        Raises:
            DesignerFaultError: If it failed instead.
        """
        try:
            async with asyncio.timeout(0):
                message = await self._receive()
        except TimeoutError:
            return False
        if message != {"prepared": True}:
            raise _fault_of(message)
        return True

    async def kill(self) -> None:
        """Kills the process and its group at once and reaps it, though the caller be cancelled."""
        await shielded(self._child.end())

    async def _receive(self) -> object:
        try:
            return await self._child.receive_json()
        except ChildDiedError as death:
            raise DesignerFaultError(f"the optimizer process {death}") from death


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
