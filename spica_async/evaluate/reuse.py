"""Answers evaluations from what was measured before, for this sweep or any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from schemas.messages import EvaluationRequest, EvaluationResult, Measurement
from spica_async.evaluate.cache.key import cache_key
from spica_async.evaluate.cache.port import NoCache, ResultCache
from spica_async.space.sample import is_noisy

log = structlog.get_logger(__name__)


def _log_note(line: str) -> None:
    log.warning("worker.other_files", why=line)


@dataclass(frozen=True, slots=True)
class Reused:
    """A result that was not measured for the evaluation that it answers.

    Attributes:
        result: as a worker would have sent it, at no time spent.
        measured: how often the question has been measured.
        others: further measurements that are kept of it.
    """

    result: EvaluationResult
    measured: int
    others: tuple[Measurement, ...] = ()


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a sweep takes from a cache of results, and gives to it.

    Attributes:
        cache: has the results.
        fingerprint: of the engine that measures.
        answers: whether results are taken from it; they are given to it in any case.
        note: called with each line that the user should read.
    """

    cache: ResultCache
    fingerprint: str
    answers: bool
    note: Callable[[str], None] = _log_note
    _noted: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    async def find(self, request: EvaluationRequest) -> Reused | None:
        """The answer to a request, if it was asked before."""
        if not self.answers:
            return None
        found = await self.cache.get(cache_key(request, fingerprint=self.fingerprint))
        if found is None:
            return None
        result = EvaluationResult(
            evaluation_id=request.evaluation_id,
            sweep_id=request.sweep_id,
            worker=found.worker,
            measurement=_free(found.measurement),
            wall_seconds=0.0,
        )
        return Reused(result, found.measured, tuple(map(_free, found.others)))

    async def keep(self, request: EvaluationRequest, result: EvaluationResult) -> None:
        """Keep what was measured, for the next evaluation that asks.

        What an older worker has measured with files of its own stays out, for nobody knows them.
        Artifacts stay out as well, for their size.
        """
        if result.own_files:
            self._note_own_files(result)
            return
        key = cache_key(request, fingerprint=self.fingerprint)
        measurement = result.measurement.model_copy(update={"artifact": None})
        await self.cache.put(key, measurement, worker=result.worker, noisy=is_noisy(request.sample))

    def _note_own_files(self, result: EvaluationResult) -> None:
        """Tell once of each worker whose results may not be comparable with the others'."""
        # What failed may not be a worker's answer at all.
        if result.measurement.outcome != "feasible" or result.worker in self._noted:
            return
        self._noted.add(result.worker)
        self.note(
            f"worker {result.worker} is of an older version, and measures with performance data of"
            " its own: what it finds may not be comparable, and is not kept for later sweeps"
        )


def _free(measurement: Measurement) -> Measurement:
    """A measurement as one that took no time."""
    return measurement.model_copy(update={"build_seconds": 0.0, "replay_seconds": 0.0})


def no_reuse() -> Reuse:
    """Takes nothing and gives nothing."""
    return Reuse(NoCache(), "", answers=False)
