"""The continuous schedule: every slot has a sample, and some more wait for the next free one.

A verdict is observed as soon as it is there, and suggestions are asked for in small batches while
the rest is being replayed. Budget and attempts are those of the whole branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from spica_async.judge.verdict import Verdict
from spica_async.search.schedule.state import (
    ATTEMPTS_PER_TARGET,
    BranchState,
    Disposition,
    Observation,
    Phase,
    successes,
)

_SMALLEST_BATCH: Final = 2
_LARGEST_BATCH: Final = 8


def batch_for(parallel_evals: int) -> int:
    """How many suggestions to ask for at a time: half of what a sweep evaluates, from 2 to 8.

    The optimizer fits its model once for each batch, exploits with the first suggestion of it and
    explores with the others.
    """
    return min(max(parallel_evals // 2, _SMALLEST_BATCH), _LARGEST_BATCH)


class ContinuousState(BranchState):
    """A branch that keeps `parallel` samples in flight until its budget is found.

    It asks for a batch when no more than `parallel` are in flight, so that up to a batch waits for
    the next free slot. Until the first success it tries no more distinct samples than a round has
    attempts, or a round of eight where that is more. It then waits for `conclude`, so that what
    gives it up is a fact of its own, and is not worked out from old verdicts once more.

    Args:
        per_round: see `BranchState`.
        max_rounds: see `BranchState`.
        parallel: samples to keep in flight.
        batch: suggestions to ask for at a time.
        points: see `BranchState`.

    Attributes:
        parallel: samples to keep in flight now.

    Raises:
        ValueError: if a number is below 1, or the points are more than the budget.
    """

    def __init__(
        self,
        *,
        per_round: int,
        max_rounds: int,
        parallel: int,
        batch: int,
        points: int | None = None,
    ) -> None:
        super().__init__(per_round=per_round, max_rounds=max_rounds, points=points)
        if batch < 1:
            raise ValueError("batch is 1 or more")
        # For each sample in flight, its suggestion and those that turned out to be the same.
        self._waiting: dict[str, list[Observation]] = {}
        self._successes = 0
        self._gave_up = False
        self._batch = batch
        self.parallel = 1
        self.keep_in_flight(parallel)

    def keep_in_flight(self, parallel: int) -> None:
        """Keep so many in flight from now on; what is too many now stays.

        Raises:
            ValueError: if it is below 1.
        """
        if parallel < 1:
            raise ValueError("parallel is 1 or more")
        self.parallel = parallel
        if not self.finished:
            self._move_on()

    @property
    def round(self) -> int:
        """The round that would be under way, or was the last one, were each one a barrier."""
        done = self._successes - 1 if self.finished and self._successes else self._successes
        return min(done // self._per_round + 1, self._max_rounds)

    @property
    def target(self) -> int:
        """Unique successes of the whole branch."""
        return self._points or self._per_round * self._max_rounds

    @property
    def unique_successes(self) -> int:
        """Unique successes so far."""
        return self._successes

    @property
    def wanted(self) -> int:
        """How many suggestions to ask for now; 0 unless the phase is `ASKING`."""
        return self._room() if self.phase is Phase.ASKING else 0

    @property
    def takes(self) -> int:
        """How many suggestions are taken now: whatever the budget and the attempts leave.

        While an ask is under way, failures may take back what was wanted when it began; the
        sampler has numbered its suggestions all the same.
        """
        return 0 if self.concluded or self.finished else self._left()

    def suggested(self, keys: Sequence[str]) -> tuple[list[Disposition], list[Observation]]:
        """Take the keys of suggestions, in their order.

        Returns:
            What becomes of each, and the duplicates of finished samples, to be observed now.

        Raises:
            ValueError: if none are given, or more than are taken.
        """
        dispositions, known = self._take(
            keys, lambda one: self._waiting.setdefault(one.key, []).append(one)
        )
        self._move_on()
        return dispositions, known

    def settled(self, key: str, verdict: Verdict) -> list[Observation]:
        """Take the verdict of a sample in flight; its suggestions, to be observed now.

        Raises:
            KeyError: if the sample is not in flight: a verdict is final and comes once.
        """
        self._in_flight.remove(key)
        self._learn(key, verdict)
        self._successes += successes([verdict])
        self._move_on()
        return self._waiting.pop(key)

    def conclude(self) -> list[Observation]:
        """Ask for nothing more: the branch ends once nothing is in flight.

        As `CONVERGED`, unless it gave up by itself.
        """
        self._gave_up = self._gave_up or self.gives_up
        self.concluded = True
        if not self.finished:
            self._move_on()
        return []

    @property
    def gives_up(self) -> bool:
        """Whether nothing was found by as many samples as are tried before the first success."""
        return self._is_hopeless and not self._in_flight and not self.finished

    def is_new(self, key: str) -> bool:
        """Whether this sample was not suggested before."""
        return not (key in self._known or key in self._in_flight)

    @property
    def _is_hopeless(self) -> bool:
        if self._successes or self._points is not None:
            return False
        return len(self._known) >= ATTEMPTS_PER_TARGET * self._enough

    def _room(self) -> int:
        free = self.parallel - len(self._in_flight)
        if free < 0 or self.concluded or self._is_hopeless:
            return 0
        return min(max(free, self._batch), self._left())

    def _left(self) -> int:
        missing = self.target - self._successes - len(self._in_flight)
        attempts = ATTEMPTS_PER_TARGET * self.target if self._points is None else self._points
        return max(0, min(missing, attempts - self.attempts))

    def _move_on(self) -> None:
        phase = self._next_phase()
        if phase is not self.phase:
            self._move(phase)

    def _next_phase(self) -> Phase:
        if self._room() > 0:
            return Phase.ASKING
        if self._in_flight:
            return Phase.WAITING
        if self._is_hopeless and self._left() and not self.concluded:
            return Phase.WAITING  # For its conclusion.
        return self._end()

    def _end(self) -> Phase:
        if self._points is not None and self.attempts == self._points:
            return self._fruitless(Phase.EXHAUSTED)
        if self._successes >= self.target:
            return Phase.COMPLETED
        if self.concluded and not self._gave_up:
            return Phase.CONVERGED
        return self._fruitless(Phase.STALLED)
