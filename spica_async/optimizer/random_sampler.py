"""A sampler that learns nothing: evenly spread trials, without a process."""

from __future__ import annotations

import time
from collections.abc import Sequence

from schemas.journal import SamplerStats
from spica_async.optimizer.assignments import check_study
from spica_async.optimizer.ledger import TrialLedger
from spica_async.optimizer.quasi_random import draw_spread
from spica_async.optimizer.types import Study, Suggestion, Trial
from spica_async.space.parameters import Assignment


class RandomSampler:
    """Proposes the centre of the space and then a seeded quasi-random sequence; a `Sampler`.

    Args:
        study: The branch's parameters and objectives.

    Raises:
        ValueError: If the study cannot be searched; see `check_study`.
    """

    def __init__(self, study: Study) -> None:
        check_study(study)
        self.stats = SamplerStats()
        self._study = study
        self._ledger = TrialLedger(study)

    async def ask(self, count: int) -> list[Suggestion]:
        """Proposes `count` assignments; see `Sampler.ask`.

        Raises:
            ValueError: If `count` is below 1.
        """
        started = time.perf_counter()
        request = self._ledger.request(count)
        suggestions = draw_spread(self._study, range(request.first, request.first + count))
        self._ledger.answer(request, suggestions)
        self.stats.suggest_seconds += time.perf_counter() - started
        self.stats.asks += 1
        self.stats.suggestions += count
        return suggestions

    async def place(self, assignments: Sequence[Assignment]) -> list[Suggestion]:
        """Takes in the caller's own assignments as pending; see `Sampler.place`.

        Raises:
            ValueError: If the study does not allow an assignment. Then none is taken in.
        """
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
