"""The schedule of rounds: each is a barrier, so that the search depends on measurements alone.

A round is made of waves. A wave asks until, were everything in flight to succeed, the round would
have its target; then it waits for all of it. What arrives within a wave changes nothing before the
wave ends, and is then observed in the order of the suggestions. So the search depends on what was
measured, and not on which replay happened to end first.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from spica_async.judge.verdict import Verdict
from spica_async.search.schedule.state import (
    ATTEMPTS_PER_TARGET,
    BranchState,
    Disposition,
    Observation,
    Phase,
    successes,
)


class RoundsState(BranchState):
    """A branch whose rounds each find their unique successes within their own attempts."""

    def __init__(self, *, per_round: int, max_rounds: int, points: int | None = None) -> None:
        super().__init__(per_round=per_round, max_rounds=max_rounds, points=points)
        self._round = 1
        self._round_attempts = 0
        self._round_successes = 0
        self._wave: list[Observation] = []
        self._arrived: dict[str, Verdict] = {}

    @property
    def round(self) -> int:
        """The current round, from 1; the last one when finished."""
        return self._round

    @property
    def target(self) -> int:
        """Unique successes of one round."""
        if self._points is None:
            return self._per_round
        return min(self._per_round, self._points - self.attempts + self._round_attempts)

    @property
    def unique_successes(self) -> int:
        """Unique successes of the round, those of the wave under way included."""
        return self._round_successes + successes(self._arrived.values())

    @property
    def wanted(self) -> int:
        """How many suggestions to ask for now; 0 unless the phase is `ASKING`."""
        if self.phase is not Phase.ASKING:
            return 0
        missing = self._per_round - self._round_successes
        missing -= len(self._in_flight) + len(self._arrived)
        return min(missing, self._attempts_left())

    def suggested(self, keys: Sequence[str]) -> tuple[list[Disposition], list[Observation]]:
        """Take the keys of suggestions, in their order.

        Returns:
            What becomes of each, and what to observe now: the duplicates of finished samples, and
            the whole wave if it ends with nothing in flight.

        Raises:
            ValueError: if none are given, or more than are taken.
        """
        dispositions, observations = self._take(keys, self._wave.append)
        self._round_attempts += len(keys)
        if self.wanted <= 0:
            self._move(Phase.WAITING)
            observations += self._end_wave_if_complete()
        return dispositions, observations

    def settled(self, key: str, verdict: Verdict) -> list[Observation]:
        """Take the verdict of a sample in flight; the wave's observations once it is the last.

        Raises:
            KeyError: if the sample is not in flight: a verdict is final and comes once.
        """
        self._in_flight.remove(key)
        self._arrived[key] = verdict
        return self._end_wave_if_complete()

    def conclude(self) -> list[Observation]:
        """Ask for nothing more: the branch ends as `CONVERGED` once nothing is in flight."""
        self.concluded = True
        if self.phase is Phase.ASKING:
            if self._round > 1 and not self._round_attempts:
                # Nothing was asked in this round: the one before was the last.
                self._round -= 1
                self._round_successes = self._per_round
            self._move(Phase.WAITING)
        return self._end_wave_if_complete()

    def is_new(self, key: str) -> bool:
        """Whether this sample was not suggested before."""
        return not (key in self._known or key in self._in_flight or key in self._arrived)

    def _verdicts(self) -> Iterable[Verdict]:
        return itertools.chain(self._known.values(), self._arrived.values())

    def _attempts_left(self) -> int:
        if self._points is not None:
            return self._points - self.attempts
        return ATTEMPTS_PER_TARGET * self._per_round - self._round_attempts

    def _end_wave_if_complete(self) -> list[Observation]:
        if self.phase is not Phase.WAITING or self._in_flight:
            return []
        observed, self._wave = self._wave, []
        self._round_successes += successes(self._arrived.values())
        for key in dict.fromkeys(one.key for one in observed):
            self._learn(key, self._arrived[key])
        self._arrived = {}
        self._move(self._after_wave())
        return observed

    def _after_wave(self) -> Phase:
        if self._points is not None and self.attempts == self._points:
            return self._fruitless(Phase.EXHAUSTED)
        round_is_full = self._round_successes >= self._per_round
        if round_is_full and self._round == self._max_rounds:
            return Phase.COMPLETED
        if self.concluded:
            return Phase.CONVERGED
        if round_is_full:
            self._round += 1
            self._round_attempts = 0
            self._round_successes = 0
            return Phase.ASKING
        return Phase.ASKING if self._attempts_left() > 0 else self._fruitless(Phase.STALLED)
