"""The sampler of one branch: an optimizer in a process of its own, behind `ask` and `observe`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from schemas.journal import SamplerStats
from spica_async.optimizer.assignments import accept, check_study
from spica_async.optimizer.channel import DesignerChannel, DesignerFaultError
from spica_async.optimizer.ledger import TrialLedger
from spica_async.optimizer.quasi_random import draw, draw_spread
from spica_async.optimizer.types import Study, Suggestion, Trial
from spica_async.optimizer.wire import AskRequest, Costs
from spica_async.processes.memory import child_memory_limit
from spica_async.space.parameters import Assignment

FAST_DESIGNER = "spica_async.optimizer.designer:FastDesigner"

_PATIENCE_FOR_SUCCESSOR = 1.25
"""Part of the memory limit up to which a process goes on while its successor is prepared."""


_MOST_MEMORY = 1.5
"""Part of the memory limit that a process may have in any case; beyond that, if there is no more
for one child, it is ended in the middle of its work."""


class SamplerProcess:
    """Asks an optimizer process for suggestions, and goes on without it when it fails.

    The proxy keeps the history and the pending suggestions and sends them with each ask, so a
    process can be replaced at any time without changing what is proposed. An ask that the process
    does not answer in time and in full is answered by quasi-random draws instead, and a new
    process is started for the next ask. A process that has grown too large goes on until another
    one is ready to take its place.

    The first trials are made here, while the process loads its libraries and compiles.

    Use it as an async context manager: entering starts the process, leaving kills it.

    Args:
        study: The branch's parameters and objectives.
        suggest_timeout_seconds: Longest wait for the answer to one ask, in seconds.
        designer: Import path, `module:name`, of the factory of what runs in the process.
        seeds: How many trials, placed ones among them, are spread over the space before the
            process is asked, and not one more unless no result is observed yet. With 0 it makes
            all.
        max_memory_mb: Resident memory at which a process is replaced, in MiB.
        log_path: Where the process's stderr is appended; nowhere if None.

    Raises:
        ValueError: If the study cannot be searched; see `check_study`.
    """

    def __init__(
        self,
        study: Study,
        *,
        suggest_timeout_seconds: float = 180.0,
        designer: str = FAST_DESIGNER,
        seeds: int = 8,
        max_memory_mb: float = 1200.0,
        log_path: Path | None = None,
    ) -> None:
        check_study(study)
        self.stats = SamplerStats()
        self._study = study
        self._timeout = suggest_timeout_seconds
        self._designer = designer
        self._seeds = seeds
        self._max_memory = max_memory_mb
        self._log_path = log_path
        self._ledger = TrialLedger(study)
        self._entered = False
        self._channel: DesignerChannel | None = None
        self._successor: DesignerChannel | None = None
        self._costs: Costs | None = None
        self._starts = 0
        # Numbers go to asks in the order in which they are made.
        self._turn = asyncio.Lock()
        self._log = structlog.get_logger(__name__).bind(branch=study.branch)

    async def __aenter__(self) -> Self:
        """Starts the optimizer process.

        Raises:
            OSError: If the operating system cannot start a process.
        """
        await self._start()
        self._entered = True
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Kills the optimizer process, and its successor if there is one, and reaps them."""
        self._entered = False
        try:
            await self._discard()
        finally:
            await self._discard_successor()

    @property
    def pid(self) -> int | None:
        """The process id of the optimizer, or None while none runs."""
        return None if self._channel is None else self._channel.pid

    async def ask(self, count: int) -> list[Suggestion]:
        """Proposes `count` assignments; see `Sampler.ask`.

        When cancelled, the process is killed, no number is used up, and the next ask starts
        another process.

        Raises:
            ValueError: If `count` is below 1.
            RuntimeError: Outside the sampler's context.
        """
        async with self._turn:
            request = self._ledger.request(count)
            if not self._entered:
                raise RuntimeError("ask inside the sampler's context")
            started = time.perf_counter()
            try:
                suggestions = await self._suggest(request)
            finally:
                self.stats.suggest_seconds += time.perf_counter() - started
            self.stats.asks += 1
            self.stats.suggestions += count
            self._ledger.answer(request, suggestions)
            return suggestions

    async def place(self, assignments: Sequence[Assignment]) -> list[Suggestion]:
        """Takes in the caller's own assignments as pending; see `Sampler.place`.

        Raises:
            ValueError: If the study does not allow an assignment. Then none is taken in.
        """
        async with self._turn:
            return self._ledger.place(assignments)

    async def restore(self, suggestions: Sequence[Suggestion], *, asked: bool) -> None:
        """Takes in what an earlier sampler was asked for or given; see `Sampler.restore`.

        Raises:
            ValueError: If they are not the next ones, or the study does not allow one of them.
        """
        self._ledger.restore(suggestions, asked=asked)

    async def observe(self, trials: Sequence[Trial]) -> None:
        """Takes in what is known of pending suggestions; see `Sampler.observe`.

        Raises:
            ValueError: If a trial answers no pending suggestion, differs from it, or does not hold
                one finite number per objective. Then none of `trials` is taken in.
        """
        self._ledger.observe(trials)

    def _seeds_of(self, request: AskRequest) -> int:
        """Returns how many of the suggestions that are asked for need no model."""
        if self._seeds > 0 and not request.history:
            return request.count
        return min(max(self._seeds - request.first, 0), request.count)

    async def _suggest(self, request: AskRequest) -> list[Suggestion]:
        seeds = self._seeds_of(request)
        if seeds == 0:
            return await self._suggest_by_model(request)
        drawn = draw_spread(self._study, range(request.first, request.first + seeds))
        if seeds == request.count:
            if self._channel is not None:
                self._channel.prepare(request)
            return drawn
        rest = replace(
            request,
            first=request.first + seeds,
            count=request.count - seeds,
            pending=(*request.pending, *drawn),
        )
        return [*drawn, *await self._suggest_by_model(rest)]

    async def _suggest_by_model(self, request: AskRequest) -> list[Suggestion]:
        numbers = range(request.first, request.first + request.count)
        try:
            assignments = await self._propose(request)
        except DesignerFaultError as fault:
            reason = str(fault)
            self._log.warning(
                "quasi_random_stand_in",
                first=request.first,
                count=request.count,
                reason=reason,
                detail=fault.detail,
            )
            await self._restart(request)
        else:
            return [
                Suggestion(number, assignment)
                for number, assignment in zip(numbers, assignments, strict=True)
            ]
        self.stats.stand_ins += request.count
        return [
            Suggestion(number, draw(self._study, number), stand_in=reason) for number in numbers
        ]

    async def _propose(self, request: AskRequest) -> list[Assignment]:
        """Returns the process's checked answer; without one, that process is not left running.

        Raises:
            DesignerFaultError: If there is no usable answer in time.
        """
        answered = False
        try:
            async with asyncio.timeout(self._timeout):
                await self._hand_over()
                channel = self._channel or await self._start()
                answer = await channel.suggest(request)
            assignments = self._accept(answer.assignments, request)
            answered = True
        except TimeoutError as error:
            raise DesignerFaultError(f"no answer within {self._timeout:g} s") from error
        except OSError as error:
            raise DesignerFaultError(f"the optimizer process cannot start: {error}") from error
        finally:
            if not answered:
                await self._discard()
        self._count(answer.costs)
        if answer.costs.memory_mb > self._max_memory and self._successor is None:
            await self._start_successor(request)
        return assignments

    def _accept(self, raw: list[object], request: AskRequest) -> list[Assignment]:
        if len(raw) != request.count:
            raise DesignerFaultError(f"asked for {request.count} suggestions, got {len(raw)}")
        accepted: list[Assignment] = []
        for values in raw:
            if not isinstance(values, dict):
                raise DesignerFaultError(f"suggested {values!r}")
            try:
                accepted.append(accept(self._study.parameters, values))
            except ValueError as error:
                raise DesignerFaultError(
                    f"suggested what the study does not allow: {error}"
                ) from error
        return accepted

    def _count(self, costs: Costs) -> None:
        """Adds what the process has cost since its last answer."""
        if self._costs is None:
            self.stats.start_seconds += costs.start_seconds
            self.stats.compile_seconds += costs.compile_seconds
        else:
            self.stats.compile_seconds += costs.compile_seconds - self._costs.compile_seconds
        self.stats.compile_wait_seconds += costs.compile_wait_seconds
        self._costs = costs

    async def _start(self) -> DesignerChannel:
        self._channel = await self._new_channel()
        self._starts += 1
        if self._starts > 1:
            self.stats.restarts += 1
        return self._channel

    async def _new_channel(self) -> DesignerChannel:
        wanted = int(_MOST_MEMORY * self._max_memory * 2**20)
        return await DesignerChannel.start(
            self._study,
            self._designer,
            memory_bytes=max(wanted, child_memory_limit()),
            log_path=self._log_path,
        )

    async def _discard(self) -> None:
        channel, self._channel, self._costs = self._channel, None, None
        if channel is not None:
            await channel.kill()

    async def _restart(self, request: AskRequest) -> None:
        """Starts the next process now: it imports and compiles while stand-ins are measured."""
        try:
            (await self._start()).prepare(request)
        except OSError as error:
            # The next ask tries again, and draws again if that fails.
            self._log.warning("optimizer_cannot_start", error=str(error))

    async def _start_successor(self, answered: AskRequest) -> None:
        """Starts a process that is to take over once it is prepared for what is asked next."""
        try:
            successor = await self._new_channel()
        except OSError as error:
            # The next ask tries again; until then the large process serves.
            self._log.warning("optimizer_cannot_start", error=str(error))
            return
        successor.prepare(answered)
        self._successor = successor

    async def _hand_over(self) -> None:
        """Lets the successor take over, if there is one that is ready or needed at once."""
        successor = self._successor
        if successor is None:
            return
        try:
            prepared = await successor.is_prepared()
        except DesignerFaultError as fault:
            self._log.warning("optimizer_successor_failed", reason=str(fault), detail=fault.detail)
            await self._discard_successor()
            return
        memory = 0.0 if self._costs is None else self._costs.memory_mb
        if prepared or memory > _PATIENCE_FOR_SUCCESSOR * self._max_memory:
            self._successor = None
            old, self._channel, self._costs = self._channel, successor, None
            self.stats.recycled += 1
            if old is not None:
                await old.kill()

    async def _discard_successor(self) -> None:
        successor, self._successor = self._successor, None
        if successor is not None:
            await successor.kill()
