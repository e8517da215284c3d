"""One slot: room for one evaluation at a time, and the child that runs it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

import structlog
from pydantic import ValidationError

from schemas.messages import Cause, EvaluationRequest, Measurement
from spica_async.processes.memory import mebibytes
from spica_async.states import moved
from workers.child import ChildGreeting
from workers.groups import resident_bytes
from workers.port import MAX_CHILD_DEATHS, ChildDeaths, SlotOutcome, SlotStatistics
from workers.process import ChildDiedError, ChildProcess, ChildStartError, spawn_child
from workers.settings import ChildSettings

log = structlog.get_logger(__name__)


class SlotState(Enum):
    """What a slot's child is doing."""

    EMPTY = "empty"
    """There is no child: before the first, between two, and after the last."""
    STARTING = "starting"
    """The child imports the evaluator."""
    IDLE = "idle"
    """The child is warm and waits for a request."""
    BUSY = "busy"
    """The child evaluates."""
    ENDING = "ending"
    """The child's process group is being ended and reaped."""


TRANSITIONS: Mapping[SlotState, frozenset[SlotState]] = {
    SlotState.EMPTY: frozenset({SlotState.STARTING}),
    # Back to empty when there was not even a process.
    SlotState.STARTING: frozenset({SlotState.IDLE, SlotState.ENDING, SlotState.EMPTY}),
    SlotState.IDLE: frozenset({SlotState.BUSY, SlotState.ENDING}),
    SlotState.BUSY: frozenset({SlotState.IDLE, SlotState.ENDING}),
    SlotState.ENDING: frozenset({SlotState.EMPTY}),
}


class _LimitReachedError(Exception):
    """The evaluation may not go on."""

    def __init__(self, cause: Cause, detail: str) -> None:
        super().__init__(detail)
        self.cause = cause


class _Clock:
    """The time that one evaluation may still take; it runs while a child evaluates."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._began: float | None = None

    def start(self) -> float:
        """Run from now on; until when it may."""
        self._began = asyncio.get_running_loop().time()
        return self._began + self._left

    def stop(self) -> None:
        """Charge the time since it was started, if it was."""
        if self._began is not None:
            self._left -= asyncio.get_running_loop().time() - self._began
            self._began = None


class Slot:
    """An `EvaluationSlot` that owns one child at a time and replaces it as needed.

    `memory_limit_bytes` is the most that a child with all that it started may have resident.
    """

    def __init__(self, index: int, settings: ChildSettings, memory_limit_bytes: int) -> None:
        self.index = index
        self.statistics = SlotStatistics()
        self._settings = settings
        self._memory_limit_bytes = memory_limit_bytes
        self._state = SlotState.EMPTY
        self._child: ChildProcess | None = None
        self._log = log.bind(slot=index)

    @property
    def state(self) -> SlotState:
        """What the slot's child is doing."""
        return self._state

    @property
    def is_warm(self) -> bool:
        """Whether there is a child that waits for a request."""
        return self._state is SlotState.IDLE and not (self._child is None or self._child.has_exited)

    @property
    def child_pid(self) -> int | None:
        """The process id of the slot's child, if there is one."""
        return None if self._child is None else self._child.pid

    async def start(self) -> None:
        """Have a warm child; without effect when there is one.

        Raises:
            ChildStartError: `settings.start_attempts` children in a row could not be started.
        """
        await self._warm_child()

    async def evaluate(self, request: EvaluationRequest, deaths: ChildDeaths) -> SlotOutcome:
        """Run one evaluation to its end, on new children as long as they die over it.

        `request.max_eval_seconds` bounds the running time over all of them, without the time that
        children take to start and to be set up for the request: one that takes more than
        `settings.start_seconds` for that has died. The slot is idle afterwards, or empty when the
        child had to end.

        Raises:
            ChildStartError: as `start`.
        """
        time = asyncio.get_running_loop().time
        seconds = request.max_eval_seconds
        clock = _Clock(math.inf if seconds is None else seconds)
        while True:
            deaths.setting_up = True
            child = await self._warm_child()
            self._enter(SlotState.BUSY)
            began = time()
            try:
                await self._set_up(child, request)
                deaths.setting_up = False
                measurement = await self._measure(child, request, clock.start())
                self._enter(SlotState.IDLE)
            except _LimitReachedError as limited:
                measurement = _failed(limited.cause, str(limited))
                await self._end_child(self._settings.term_grace_seconds)
            except ChildDiedError as death:
                why = await child.explain(death)
                deaths.count += 1
                self._count_death(child, why)
                await self._end_child(grace_seconds=0)
                if deaths.count < MAX_CHILD_DEATHS:
                    continue
                detail = f"{deaths.count} children died; the last: {why}"
                measurement = _failed("child_died", detail)
            finally:
                clock.stop()
                self.statistics.busy_seconds += time() - began
            self.statistics.evaluations += 1
            return SlotOutcome(measurement, deaths.count)

    async def end(self) -> None:
        """End the child, if there is one, and what it started: SIGTERM, after a grace SIGKILL."""
        if self._child is not None:
            await self._end_child(self._settings.term_grace_seconds)

    def kill(self) -> None:
        """Send SIGKILL to what runs, without waiting; `close` must follow."""
        if self._child is not None:
            self._child.kill()

    async def close(self) -> None:
        """Kill the child, if there is one, and what it started, and reap it. May be repeated."""
        if self._child is not None:
            await self._end_child(grace_seconds=0)

    async def _set_up(self, child: ChildProcess, request: EvaluationRequest) -> None:
        await child.send(request.model_dump_json())
        limit = self._settings.start_seconds
        try:
            line = await self._receive(child, asyncio.get_running_loop().time() + limit)
            ChildGreeting.model_validate_json(line)
        except TimeoutError as error:
            raise ChildDiedError(f"it was not set up for the request after {limit:g} s") from error
        except ValidationError as error:
            raise ChildDiedError("it sent something that is no greeting") from error

    async def _measure(
        self, child: ChildProcess, request: EvaluationRequest, deadline: float
    ) -> Measurement:
        try:
            line = await self._receive(child, deadline)
            return Measurement.model_validate_json(line)
        except TimeoutError as error:
            raise _LimitReachedError(
                "time_limit", f"still ran after max_eval_seconds, {request.max_eval_seconds:g}"
            ) from error
        except ValidationError as error:
            raise ChildDiedError("it sent something that is not a measurement") from error

    async def _receive(self, child: ChildProcess, deadline: float) -> bytes:
        """The child's next line, whose memory is looked at meanwhile.

        Raises:
            TimeoutError: there is none by the deadline.
            ChildDiedError: there will be none.
            _LimitReachedError: it took too much memory.
        """
        time = asyncio.get_running_loop().time
        while True:
            try:
                look_at = min(deadline, time() + self._settings.memory_sample_seconds)
                async with asyncio.timeout_at(look_at):
                    return await child.receive()
            except TimeoutError:
                if time() >= deadline:
                    raise
            allowed, resident = self._memory_limit_bytes, resident_bytes(child.pid)
            if resident > allowed:
                raise _LimitReachedError(
                    "resource_limited",
                    f"took {mebibytes(resident)} of memory, {mebibytes(allowed)} allowed",
                )

    async def _warm_child(self) -> ChildProcess:
        if self._child is not None and self._child.has_exited:
            self._count_death(self._child, "it exited while idle")
            await self._end_child(grace_seconds=0)
        if self._child is not None:
            return self._child
        pause = self._settings.restart_pause_seconds
        attempt = 1
        while True:
            try:
                return await self._start_child()
            except ChildStartError as error:
                self._log.warning("worker.child_start_failed", attempt=attempt, error=str(error))
                if attempt == self._settings.start_attempts:
                    raise
            await asyncio.sleep(pause)
            pause *= 2
            attempt += 1

    async def _start_child(self) -> ChildProcess:
        self._enter(SlotState.STARTING)
        folder = self._settings.log_folder
        log_path: Path | None = None if folder is None else folder / f"slot-{self.index}.log"
        try:
            child = await spawn_child(self._settings, log_path)
        except BaseException:
            self._enter(SlotState.EMPTY)
            raise
        self._child = child
        try:
            await child.ready()
        except ChildStartError:
            await self._end_child(grace_seconds=0)
            raise
        self.statistics.child_starts += 1
        self._enter(SlotState.IDLE)
        return child

    async def _end_child(self, grace_seconds: float) -> None:
        assert self._child is not None  # noqa: S101 - for the type checker; callers have looked
        if self._state is not SlotState.ENDING:
            self._enter(SlotState.ENDING)
        await self._child.end(grace_seconds)
        self._child = None
        self._enter(SlotState.EMPTY)

    def _enter(self, state: SlotState) -> None:
        self._state = moved(f"slot {self.index}", TRANSITIONS, self._state, state)

    def _count_death(self, child: ChildProcess, why: str) -> None:
        self.statistics.child_deaths += 1
        self._log.warning("worker.child_died", pid=child.pid, why=why)


def _failed(cause: Cause, detail: str) -> Measurement:
    return Measurement(outcome="failed", cause=cause, detail=detail)
