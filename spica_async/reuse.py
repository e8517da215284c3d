"""Answers evaluations from what was measured before, for this sweep or any other."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.messages import EvaluationRequest, EvaluationResult
from spica_async.result_cache import NoCache, ResultCache, cache_key, is_noisy


@dataclass(frozen=True, slots=True)
class Reused:
    """A result that was not measured for the evaluation that it answers.

    Attributes:
        result: as a worker would have sent it, at no time spent.
        measured: how often the question has been measured.
    """

    result: EvaluationResult
    measured: int


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a sweep takes from a cache of results, and gives to it.

    Attributes:
        cache: has the results.
        fingerprint: of the engine that measures.
        answers: whether results are taken from it; they are given to it in any case.
    """

    cache: ResultCache
    fingerprint: str
    answers: bool

    async def find(self, request: EvaluationRequest) -> Reused | None:
        """The answer to a request, if it was asked before."""
        key = cache_key(request, fingerprint=self.fingerprint) if self.answers else None
        found = await self.cache.get(key) if key is not None else None
        if found is None:
            return None
        measurement = found.measurement.model_copy(
            update={"build_seconds": 0.0, "replay_seconds": 0.0}
        )
        result = EvaluationResult(
            evaluation_id=request.evaluation_id,
            sweep_id=request.sweep_id,
            worker=found.worker,
            measurement=measurement,
            wall_seconds=0.0,
        )
        return Reused(result, found.measured)

    async def keep(self, request: EvaluationRequest, result: EvaluationResult) -> None:
        """Keep what was measured, for whoever asks next."""
        key = cache_key(request, fingerprint=self.fingerprint)
        if key is not None:
            await self.cache.put(
                key, result.measurement, worker=result.worker, noisy=is_noisy(request.sample)
            )


def no_reuse() -> Reuse:
    """Takes nothing and gives nothing."""
    return Reuse(NoCache(), "", answers=False)
