"""The trials of one study as its sampler knows them: observed, and pending."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from spica_async.optimizer.assignments import accept
from spica_async.optimizer.types import Study, Suggestion, Trial
from spica_async.optimizer.wire import AskRequest
from spica_async.space.parameters import Assignment


class TrialLedger:
    """Numbers the suggestions of a study from 0, and holds each until and after it is observed.

    Args:
        study: The study, which `check_study` has found sound.
    """

    def __init__(self, study: Study) -> None:
        self._study = study
        self._history: dict[int, Trial] = {}
        self._pending: dict[int, Suggestion] = {}
        self._told_before_last_ask = 0

    def request(self, count: int) -> AskRequest:
        """Returns an ask for the next `count` suggestions.

        Raises:
            ValueError: If `count` is below 1.
        """
        if count < 1:
            raise ValueError(f"cannot suggest {count} trials")
        return AskRequest(
            first=len(self._history) + len(self._pending),
            count=count,
            history=tuple(self._history[number] for number in sorted(self._history)),
            pending=tuple(self._pending[number] for number in sorted(self._pending)),
            has_news=len(self._history) > self._told_before_last_ask,
        )

    def answer(self, request: AskRequest, suggestions: Iterable[Suggestion]) -> None:
        """Takes in the suggestions of an ask, numbered on, as pending."""
        self._told_before_last_ask = len(request.history)
        self._add(suggestions)

    def place(self, assignments: Sequence[Assignment]) -> list[Suggestion]:
        """Numbers the caller's own assignments and takes them in as pending.

        Raises:
            ValueError: If the study does not allow one of them. Then none is taken in.
        """
        accepted = [accept(self._study.parameters, assignment) for assignment in assignments]
        first = len(self._history) + len(self._pending)
        placed = [Suggestion(first + i, assignment) for i, assignment in enumerate(accepted)]
        self._add(placed)
        return placed

    def restore(self, suggestions: Sequence[Suggestion], *, asked: bool) -> None:
        """Takes in suggestions that an earlier ledger of the same study has numbered, as pending.

        Args:
            suggestions: The next ones, in order.
            asked: Whether an ask made some of them, rather than the caller all.

        Raises:
            ValueError: If they are not the next ones, or the study does not allow one of them.
        """
        first = len(self._history) + len(self._pending)
        if [one.number for one in suggestions] != [*range(first, first + len(suggestions))]:
            raise ValueError(f"suggestions do not go on from number {first}")
        for suggestion in suggestions:
            accept(self._study.parameters, suggestion.assignment)
        if asked:
            self._told_before_last_ask = len(self._history)
        self._add(suggestions)

    def observe(self, trials: Sequence[Trial]) -> None:
        """Takes in what is known of pending suggestions.

        Raises:
            ValueError: If a trial answers no pending suggestion, differs from it, or does not hold
                one finite number per objective. Then none of `trials` is taken in.
        """
        observed = {trial.number: trial for trial in trials}
        if len(observed) < len(trials):
            raise ValueError("a trial is observed twice")
        for trial in trials:
            self._check(trial)
        self._history.update(observed)
        for number in observed:
            del self._pending[number]

    def _add(self, suggestions: Iterable[Suggestion]) -> None:
        self._pending.update({suggestion.number: suggestion for suggestion in suggestions})

    def _check(self, trial: Trial) -> None:
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
