"""The evaluations that a worker holds right now, and how a cancelled sweep ends them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from schemas.messages import EvaluationRequest

_REMEMBERED_SWEEPS = 1024


class EvaluationCancelledError(Exception):
    """The evaluation's sweep was cancelled: nobody waits for it."""


class Holding:
    """One evaluation in this worker's hands."""

    def __init__(self, request: EvaluationRequest, scope: asyncio.Timeout) -> None:
        self.evaluation_id = request.evaluation_id
        self.sweep_id = request.sweep_id
        self.run = request.run
        self.has_started = False
        """Whether a child may be at work, which is then given the grace of a cancellation."""
        self._scope = scope

    def cancel(self, grace_seconds: float) -> None:
        """End it: at once if it has not started, else after the grace, or earlier if so set."""
        if self._scope.expired():
            return
        when = asyncio.get_running_loop().time() + (grace_seconds if self.has_started else 0)
        earlier = self._scope.when()
        self._scope.reschedule(when if earlier is None else min(when, earlier))


class Holdings:
    """All of a worker's, one per busy slot at most."""

    def __init__(self) -> None:
        self._held: list[Holding] = []
        # The last run of each that is over.
        self._cancelled_runs: OrderedDict[str, int] = OrderedDict()

    @property
    def evaluation_ids(self) -> list[str]:
        """Of what is held, the longest held first."""
        # A request may be delivered twice, and is then held twice.
        return list(dict.fromkeys(holding.evaluation_id for holding in self._held))

    @asynccontextmanager
    async def hold(self, request: EvaluationRequest) -> AsyncIterator[Holding]:
        """Hold the evaluation while the context is open.

        Raises:
            EvaluationCancelledError: its sweep is cancelled, or was while it was held; what ran
                inside the context has been cancelled.
        """
        if request.run <= self._cancelled_runs.get(request.sweep_id, 0):
            raise EvaluationCancelledError
        try:
            async with asyncio.timeout(None) as scope:
                holding = Holding(request, scope)
                self._held.append(holding)
                try:
                    yield holding
                finally:
                    self._held.remove(holding)
        except TimeoutError as error:
            if scope.expired():
                raise EvaluationCancelledError from error
            raise

    def cancel_sweep(self, sweep_id: str, run: int, grace_seconds: float) -> None:
        """End what is held of a run of a sweep, or one before, and let none of it be held again."""
        self._cancelled_runs[sweep_id] = max(run, self._cancelled_runs.get(sweep_id, 0))
        self._cancelled_runs.move_to_end(sweep_id)
        if len(self._cancelled_runs) > _REMEMBERED_SWEEPS:
            self._cancelled_runs.popitem(last=False)
        for holding in self._held:
            if holding.sweep_id == sweep_id and holding.run <= run:
                holding.cancel(grace_seconds)
