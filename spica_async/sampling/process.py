"""The sampler of one branch: an optimizer in a process of its own, behind ask and tell."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from spica_async.sampling.assignments import accept, check_study
from spica_async.sampling.channel import DesignerChannel, DesignerFaultError
from spica_async.sampling.port import SamplerStats
from spica_async.sampling.quasi_random import draw
from spica_async.sampling.types import Study, Suggestion, Trial
from spica_async.sampling.wire import AskRequest
from spica_async.space.parameters import Assignment

VIZIER_DESIGNER = "spica_async.sampling.designer:GaussianProcessDesigner"


class SamplerProcess:
    """Asks an optimizer process for suggestions, and goes on without it when it fails.

    The proxy keeps the history and the pending suggestions and sends them with each ask, so a
    process can be replaced at any time without changing what is proposed. An ask that the process
    does not answer in time and in full is answered by quasi-random draws instead, and a new
    process is started for the next ask.

    Use it as an async context manager: entering starts the process, which imports its libraries
    while nobody waits; leaving kills it.

    Args:
        study: The branch's parameters and objectives.
        suggest_timeout_seconds: Longest wait for the answer to one ask, in seconds.
        designer: Import path, `module:name`, of the factory of what runs in the process.
        log_path: Where the process's stderr is appended; nowhere if None.

    Raises:
        ValueError: If the study cannot be searched; see `check_study`.
    """

    def __init__(
        self,
        study: Study,
        *,
        suggest_timeout_seconds: float = 180.0,
        designer: str = VIZIER_DESIGNER,
        log_path: Path | None = None,
    ) -> None:
        check_study(study)
        self.stats = SamplerStats()
        self._study = study
        self._timeout = suggest_timeout_seconds
        self._designer = designer
        self._log_path = log_path
        self._history: dict[int, Trial] = {}
        self._pending: dict[int, Suggestion] = {}
        self._entered = False
        self._channel: DesignerChannel | None = None
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
        """Kills the optimizer process and reaps it."""
        self._entered = False
        await self._discard()

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
        if count < 1:
            raise ValueError(f"cannot suggest {count} trials")
        async with self._turn:
            if not self._entered:
                raise RuntimeError("ask inside the sampler's context")
            started = time.perf_counter()
            try:
                suggestions = await self._suggest(count)
            finally:
                self.stats.suggest_seconds += time.perf_counter() - started
            self.stats.asks += 1
            self.stats.suggestions += count
            self._pending.update({suggestion.number: suggestion for suggestion in suggestions})
            return suggestions

    async def tell(self, trials: Sequence[Trial]) -> None:
        """Takes in what is known of pending suggestions; see `Sampler.tell`.

        Raises:
            ValueError: If a trial answers no pending suggestion, differs from it, or does not hold
                one finite number per objective. Then none of `trials` is taken in.
        """
        told = {trial.number: trial for trial in trials}
        if len(told) < len(trials):
            raise ValueError("a trial is told twice")
        for trial in trials:
            self._check_trial(trial)
        self._history.update(told)
        for number in told:
            del self._pending[number]

    async def _suggest(self, count: int) -> list[Suggestion]:
        first = len(self._history) + len(self._pending)
        request = AskRequest(
            first=first,
            count=count,
            history=tuple(self._history[number] for number in sorted(self._history)),
            pending=tuple(self._pending[number] for number in sorted(self._pending)),
        )
        numbers = range(first, first + count)
        try:
            assignments = await self._propose(request)
        except DesignerFaultError as fault:
            reason = str(fault)
            self._log.warning(
                "quasi_random_stand_in",
                first=first,
                count=count,
                reason=reason,
                detail=fault.detail,
            )
            await self._restart()
        else:
            return [
                Suggestion(number, assignment)
                for number, assignment in zip(numbers, assignments, strict=True)
            ]
        # In a thread, because the first draw imports scipy.
        drawn = await asyncio.to_thread(lambda: [draw(self._study, number) for number in numbers])
        self.stats.stand_ins += count
        return [
            Suggestion(number, assignment, stand_in=reason)
            for number, assignment in zip(numbers, drawn, strict=True)
        ]

    async def _propose(self, request: AskRequest) -> list[Assignment]:
        """Returns the process's checked answer; without one, no process is left running.

        Raises:
            DesignerFaultError: If there is no usable answer in time.
        """
        answered = False
        try:
            async with asyncio.timeout(self._timeout):
                channel = self._channel or await self._start()
                raw = await channel.suggest(request)
            assignments = self._accept(raw, request)
            answered = True
        except TimeoutError as error:
            raise DesignerFaultError(f"no answer within {self._timeout:g} s") from error
        except OSError as error:
            raise DesignerFaultError(f"the optimizer process cannot start: {error}") from error
        finally:
            if not answered:
                await self._discard()
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

    async def _start(self) -> DesignerChannel:
        self._channel = await DesignerChannel.start(self._study, self._designer, self._log_path)
        self._starts += 1
        self.stats.restarts = self._starts - 1
        return self._channel

    async def _discard(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.kill()

    async def _restart(self) -> None:
        """Starts the next process now, so that it imports while the stand-ins are measured."""
        try:
            await self._start()
        except OSError as error:
            # The next ask tries again, and draws again if that fails.
            self._log.warning("optimizer_cannot_start", error=str(error))

    def _check_trial(self, trial: Trial) -> None:
        suggestion = self._pending.get(trial.number)
        if suggestion is None:
            raise ValueError(f"trial {trial.number} answers no pending suggestion")
        if trial.assignment != suggestion.assignment:
            raise ValueError(f"trial {trial.number} is not what was suggested")
        if trial.metrics is None:
            return
        wanted = {objective.name for objective in self._study.objectives}
        if trial.metrics.keys() != wanted:
            raise ValueError(f"trial {trial.number} needs the metrics {sorted(wanted)}")
        if not all(math.isfinite(value) for value in trial.metrics.values()):
            raise ValueError(f"trial {trial.number} holds a metric that is not finite")
