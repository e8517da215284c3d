"""One slot: room for one evaluation at a time, and the child that runs it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from enum import Enum

import structlog
from pydantic import ValidationError

from schemas.envelope import MAX_MESSAGE_BYTES
from schemas.messages import EvaluationRequest, Measurement
from spica_async.engine.own_files import own_settings
from spica_async.processes.child import (
    Child,
    ChildDiedError,
    ChildOutgrownError,
    child_environment,
    open_log,
)
from spica_async.states import moved
from workers.child import ChildGreeting
from workers.port import MAX_CHILD_DEATHS, ChildDeaths, ChildStartError, SlotStatistics
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


class _TimeLimitError(Exception):
    """The evaluation may not go on."""


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
        self._child: Child | None = None
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

    async def evaluate(self, request: EvaluationRequest, deaths: ChildDeaths) -> Measurement:
        """Run one evaluation to its end, on new children as long as they die over it.

        `request.max_eval_seconds` bounds the running time over all of them, without the time that
        children take to start and to be set up for the request: one that takes more than
        `settings.start_seconds` for that has died. The slot is idle afterwards, or empty when the
        child had to end.

        Raises:
            ChildStartError: as `start`.
        """
        seconds = request.max_eval_seconds
        clock = _Clock(math.inf if seconds is None else seconds)
        while True:
            deaths.setting_up = True
            child = await self._warm_child()
            self._enter(SlotState.BUSY)
            watch = child.watch_memory(
                self._memory_limit_bytes,
                of_group=True,
                sample_seconds=self._settings.memory_sample_seconds,
            )
            try:
                await self._set_up(child, request)
                deaths.setting_up = False
                measurement = await self._measure(child, request, clock.start())
                self._enter(SlotState.IDLE)
            except _TimeLimitError as limit:
                measurement = Measurement.failed("time_limit", str(limit))
                await self._end_child(self._settings.term_grace_seconds)
            except ChildOutgrownError as outgrown:
                measurement = Measurement.failed("resource_limited", str(outgrown))
                await self._end_child(grace_seconds=0)
            except ChildDiedError as death:
                deaths.count += 1
                self._count_death(child, f"it {death}")
                await self._end_child(grace_seconds=0)
                if deaths.count < MAX_CHILD_DEATHS:
                    continue
                detail = f"{deaths.count} children died; the last: it {death}"
                measurement = Measurement.failed("child_died", detail)
            finally:
                clock.stop()
                watch.cancel()
            self.statistics.evaluations += 1
            return measurement

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

    async def _set_up(self, child: Child, request: EvaluationRequest) -> None:
        child.send(request.model_dump_json().encode())
        limit = self._settings.start_seconds
        try:
            async with asyncio.timeout(limit):
                ChildGreeting.model_validate_json(await child.receive())
        except TimeoutError as error:
            raise ChildDiedError(f"was not set up for the request after {limit:g} s") from error
        except ValidationError as error:
            raise ChildDiedError("sent something that is no greeting") from error

    async def _measure(
        self, child: Child, request: EvaluationRequest, deadline: float
    ) -> Measurement:
        try:
            async with asyncio.timeout_at(deadline):
                return Measurement.model_validate_json(await child.receive())
        except TimeoutError as error:
            raise _TimeLimitError(
                f"still ran after max_eval_seconds, {request.max_eval_seconds:g}"
            ) from error
        except ValidationError as error:
            raise ChildDiedError("sent something that is not a measurement") from error

    async def _warm_child(self) -> Child:
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

    async def _start_child(self) -> Child:
        self._enter(SlotState.STARTING)
        settings = self._settings
        folder = settings.log_folder
        try:
            with await open_log(folder and folder / f"slot-{self.index}.log") as output:
                child = await Child.start(
                    "workers.child",
                    settings.evaluator,
                    *([] if settings.warm_up is None else [settings.warm_up]),
                    environment=_environment(settings),
                    output=output,
                    max_answer_bytes=MAX_MESSAGE_BYTES,
                )
        except BaseException:
            self._enter(SlotState.EMPTY)
            raise
        self._child = child
        try:
            await self._greeted(child)
        except ChildStartError:
            await self._end_child(grace_seconds=0)
            raise
        self.statistics.child_starts += 1
        self._enter(SlotState.IDLE)
        return child

    async def _greeted(self, child: Child) -> None:
        """Wait until a child that has just been started takes requests."""
        name, limit = self._settings.evaluator, self._settings.start_seconds
        try:
            async with asyncio.timeout(limit):
                greeting = ChildGreeting.model_validate_json(await child.receive())
        except TimeoutError as error:
            raise ChildStartError(
                f"{name}: no request taken {limit:g} s after the start"
            ) from error
        except ChildDiedError as death:
            raise ChildStartError(f"{name}: it {death}") from death
        except ValidationError as error:
            raise ChildStartError(f"{name}: it sent something that is no greeting") from error
        if greeting.error is not None:
            raise ChildStartError(f"{name}: {greeting.error}")

    async def _end_child(self, grace_seconds: float) -> None:
        assert self._child is not None  # noqa: S101 - for the type checker; callers have looked
        if self._state is not SlotState.ENDING:
            self._enter(SlotState.ENDING)
        await self._child.end(grace_seconds)
        self._child = None
        self._enter(SlotState.EMPTY)

    def _enter(self, state: SlotState) -> None:
        self._state = moved(f"slot {self.index}", TRANSITIONS, self._state, state)

    def _count_death(self, child: Child, why: str) -> None:
        self.statistics.child_deaths += 1
        self._log.warning("worker.child_died", pid=child.pid, why=why)


def _environment(settings: ChildSettings) -> dict[str, str]:
    return child_environment(
        settings.import_paths,
        **own_settings(),
        # Under kv_router the engine otherwise logs a line per request.
        DYN_LOG="error",
        RUST_LOG="error",
        NUMEXPR_NUM_THREADS="1",
    )
