"""The state of one branch: what to ask, what to send, what to tell, and when to stop.

Pure: no clock, no I/O, no sampler. The driver asks for as many suggestions as `wanted` says, hands
their keys to `suggested`, sends out the new ones, and hands every verdict to `settled`.

A round is made of waves. A wave asks until, were everything in flight to succeed, the round would
have its target; then it waits for all of it. What arrives within a wave changes nothing before the
wave ends, and is then told in the order of the suggestions. So the search depends on what was
measured, and not on which replay happened to end first.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from schemas.messages import Cause, Outcome

ATTEMPTS_PER_TARGET: Final = 11


class Phase(StrEnum):
    """Where a branch stands; the last four are final."""

    ASKING = "asking"
    """Suggestions are wanted."""
    WAITING = "waiting"
    """The wave is complete and replays are in flight."""
    COMPLETED = "completed"
    """Every round found its unique successes."""
    EXHAUSTED = "exhausted"
    """Every distinct sample of the branch was evaluated."""
    STALLED = "stalled"
    """A round used up its attempts: what is proposed is known or fails."""
    FAILED = "failed"
    """Nothing succeeded, and a round's worth of samples failed with one and the same cause."""


FINAL_PHASES: Final = frozenset({Phase.COMPLETED, Phase.EXHAUSTED, Phase.STALLED, Phase.FAILED})
TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = MappingProxyType(
    {
        Phase.ASKING: frozenset({Phase.WAITING, Phase.ASKING}) | FINAL_PHASES,
        Phase.WAITING: frozenset({Phase.ASKING}) | FINAL_PHASES,
        **{phase: frozenset[Phase]() for phase in FINAL_PHASES},
    }
)


class Disposition(StrEnum):
    """What becomes of one suggestion."""

    NEW = "new"
    """A sample nobody has asked about: send it."""
    WAITS = "waits"
    """A duplicate of one in flight: it shares that one's verdict."""
    KNOWN = "known"
    """A duplicate of a finished sample: answered from what is known."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a sample's evaluation ended; `cause` tells all outcomes but a feasible one apart."""

    outcome: Outcome
    cause: Cause | None = None
    detail: str | None = None

    @property
    def signature(self) -> tuple[Outcome, Cause | None, str]:
        """What makes two failures one and the same: all but the figures in their details."""
        return self.outcome, self.cause, re.sub(r"\d+", "#", self.detail or "")


@dataclass(frozen=True, slots=True)
class Tell:
    """A suggestion whose verdict the sampler must now hear."""

    number: int
    key: str


class BranchState:
    """The budget, rounds, attempts, known samples and waiting duplicates of one branch."""

    def __init__(self, *, target: int, max_rounds: int, points: int | None = None) -> None:
        """Start a branch.

        Args:
            target: unique successes that each round must find.
            max_rounds: rounds to run.
            points: how many distinct samples the branch has, when they are enumerated rather than
                suggested. Every one of them is then taken once, whatever becomes of it.
        """
        if target < 1 or max_rounds < 1:
            raise ValueError("target and max_rounds are 1 or more")
        if points is not None and not 1 <= points <= target * max_rounds:
            raise ValueError("enumerated points are 1 or more and within the budget")
        self._target = target
        self._max_rounds = max_rounds
        self._points = points
        self._phase = Phase.ASKING
        self._round = 1
        self._round_attempts = 0
        self._round_successes = 0
        self._attempts = 0
        self._known: dict[str, Verdict] = {}
        self._wave: list[Tell] = []
        self._in_flight: set[str] = set()
        self._arrived: dict[str, Verdict] = {}
        self._duplicates = 0

    @property
    def phase(self) -> Phase:
        """Where the branch stands."""
        return self._phase

    @property
    def finished(self) -> bool:
        """Whether nothing more will be asked or awaited."""
        return self._phase in FINAL_PHASES

    @property
    def round(self) -> int:
        """The current round, from 1; the last one when finished."""
        return self._round

    @property
    def round_successes(self) -> int:
        """Unique successes of the round's finished waves."""
        return self._round_successes

    @property
    def unique_successes(self) -> int:
        """Unique successes of the round, those of the wave under way included."""
        return self._round_successes + _successes(self._arrived)

    @property
    def in_flight(self) -> int:
        """Samples sent out and not settled."""
        return len(self._in_flight)

    @property
    def attempts(self) -> int:
        """Suggestions so far, which is also the next suggestion's number."""
        return self._attempts

    @property
    def duplicates(self) -> int:
        """Suggestions that were answered by another one's evaluation."""
        return self._duplicates

    @property
    def wanted(self) -> int:
        """How many suggestions to ask for now; 0 unless the phase is `ASKING`."""
        if self._phase is not Phase.ASKING:
            return 0
        missing = self._target - self._round_successes - len(self._in_flight) - len(self._arrived)
        return min(missing, self._attempts_left())

    @property
    def tally(self) -> Counter[Outcome]:
        """Unique samples by outcome, those of the wave under way included."""
        return Counter(verdict.outcome for verdict in self._verdicts())

    @property
    def causes(self) -> Counter[Cause]:
        """Unique unsuccessful samples by cause, those of the wave under way included."""
        return Counter(v.cause for v in self._verdicts() if v.cause is not None)

    @property
    def sole_failure(self) -> Verdict | None:
        """One of the failures that ended a `FAILED` branch; all have its cause."""
        if self._phase is not Phase.FAILED:
            return None
        return next(iter(self._known.values()))

    def suggested(self, keys: Sequence[str]) -> tuple[list[Disposition], list[Tell]]:
        """Take the keys of as many suggestions as were wanted, in their order.

        Returns:
            What becomes of each, and what to tell now: the duplicates of finished samples, and
            the whole wave if it ends with nothing in flight.

        Raises:
            ValueError: if other than `wanted` suggestions are given.
        """
        if not keys or len(keys) != self.wanted:
            raise ValueError(f"{self.wanted} suggestions are wanted, not {len(keys)}")
        dispositions, tells = [], []
        for key in keys:
            tell = Tell(self._attempts, key)
            self._attempts += 1
            self._round_attempts += 1
            if key in self._known:
                dispositions.append(Disposition.KNOWN)
                tells.append(tell)
                self._duplicates += 1
                continue
            if key in self._in_flight or key in self._arrived:
                dispositions.append(Disposition.WAITS)
                self._duplicates += 1
            else:
                dispositions.append(Disposition.NEW)
                self._in_flight.add(key)
            self._wave.append(tell)
        if self.wanted <= 0:
            self._move(Phase.WAITING)
            tells += self._end_wave_if_complete()
        return dispositions, tells

    def settled(self, key: str, verdict: Verdict) -> list[Tell]:
        """Take the verdict of a sample in flight; the wave's tells, once it is the last of them.

        Raises:
            KeyError: if the sample is not in flight: a verdict is final and comes once.
        """
        self._in_flight.remove(key)
        self._arrived[key] = verdict
        return self._end_wave_if_complete()

    def verdict(self, key: str) -> Verdict:
        """What is known of a told sample.

        Raises:
            KeyError: if its wave has not ended.
        """
        return self._known[key]

    def _verdicts(self) -> Iterator[Verdict]:
        return itertools.chain(self._known.values(), self._arrived.values())

    def _attempts_left(self) -> int:
        if self._points is not None:
            return self._points - self._attempts
        return ATTEMPTS_PER_TARGET * self._target - self._round_attempts

    def _end_wave_if_complete(self) -> list[Tell]:
        if self._phase is not Phase.WAITING or self._in_flight:
            return []
        told, self._wave = self._wave, []
        self._round_successes += _successes(self._arrived)
        self._known |= {tell.key: self._arrived[tell.key] for tell in told}
        self._arrived = {}
        self._move(self._after_wave())
        return told

    def _after_wave(self) -> Phase:
        if self._only_one_failure():
            return Phase.FAILED
        if self._points is not None and self._attempts == self._points:
            return Phase.EXHAUSTED
        if self._round_successes >= self._target:
            if self._round == self._max_rounds:
                return Phase.COMPLETED
            self._round += 1
            self._round_attempts = 0
            self._round_successes = 0
            return Phase.ASKING
        return Phase.ASKING if self._attempts_left() > 0 else Phase.STALLED

    def _only_one_failure(self) -> bool:
        verdicts = self._known.values()
        return (
            len(verdicts) >= self._target
            and all(verdict.outcome != "feasible" for verdict in verdicts)
            and len({verdict.signature for verdict in verdicts}) == 1
        )

    def _move(self, phase: Phase) -> None:
        if phase not in TRANSITIONS[self._phase]:
            raise RuntimeError(f"a branch does not go from {self._phase} to {phase}")
        self._phase = phase


def _successes(verdicts: Mapping[str, Verdict]) -> int:
    return sum(verdict.outcome == "feasible" for verdict in verdicts.values())
