"""What the state of a branch is under any schedule: its phases, its known samples, its ends.

Pure: no clock, no I/O, no sampler. The driver asks for as many suggestions as `wanted` says, hands
their keys to `suggested`, sends out the new ones, and hands every verdict to `settled`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from schemas.messages import Cause, Outcome
from spica_async.judge.verdict import Verdict
from spica_async.states import moved

ATTEMPTS_PER_TARGET: Final = 11
"""Spica's own cap: "replacement suggestions are requested up to the per-round 11x safety cap" (its
overview, step 5.2; seed 001)."""

ENOUGH_FAILURES: Final = 8
"""So many samples, or a round's worth if that is more, show whether everything fails alike.

Ours: with a ninth of a space feasible, fewer gave up spaces in which there is something to find.
"""


class Phase(StrEnum):
    """Where a branch stands; the last five are final."""

    ASKING = "asking"
    """Suggestions are wanted."""
    WAITING = "waiting"
    """Replays are in flight, and nothing is wanted before some of them end."""
    COMPLETED = "completed"
    """The whole budget of unique successes was found."""
    EXHAUSTED = "exhausted"
    """Every distinct sample of the branch was evaluated."""
    STALLED = "stalled"
    """The attempts are used up: what is proposed is known or fails."""
    FAILED = "failed"
    """As `STALLED` or `EXHAUSTED`, and everything failed by one and the same cause."""
    CONVERGED = "converged"
    """It was concluded, because what is found no longer gets better."""


FINAL_PHASES: Final = frozenset(
    {Phase.COMPLETED, Phase.EXHAUSTED, Phase.STALLED, Phase.FAILED, Phase.CONVERGED}
)
TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.ASKING: frozenset({Phase.WAITING, Phase.ASKING}) | FINAL_PHASES,
    Phase.WAITING: frozenset({Phase.ASKING}) | FINAL_PHASES,
    **{phase: frozenset[Phase]() for phase in FINAL_PHASES},
}


class Disposition(StrEnum):
    """What becomes of one suggestion."""

    NEW = "new"
    """A sample that was not suggested before: send it."""
    WAITS = "waits"
    """A duplicate of one in flight: it shares that one's verdict."""
    KNOWN = "known"
    """A duplicate of a finished sample: answered from what is known."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A suggestion whose verdict the optimizer is to observe now."""

    number: int
    key: str


class BranchState(ABC):
    """The budget, attempts and known samples of one branch; a schedule says what is wanted when.

    Args:
        per_round: unique successes that each round must find.
        max_rounds: rounds to run; with `per_round` the budget of the branch.
        points: how many distinct samples the branch has, when they are enumerated rather than
            suggested. Every one of them is then taken once.

    Attributes:
        phase: where the branch stands.
        attempts: suggestions so far, which is also the next suggestion's number.
        duplicates: suggestions that were answered by another one's evaluation.
        concluded: whether nothing more is wanted, because of `conclude`.

    Raises:
        ValueError: if a number is below 1, or the points are more than the budget.
    """

    def __init__(self, *, per_round: int, max_rounds: int, points: int | None = None) -> None:
        if per_round < 1 or max_rounds < 1:
            raise ValueError("per_round and max_rounds are 1 or more")
        if points is not None and not 1 <= points <= per_round * max_rounds:
            raise ValueError("enumerated points are 1 or more and within the budget")
        self._per_round = per_round
        self._max_rounds = max_rounds
        self._points = points
        self.phase = Phase.ASKING
        self.attempts = 0
        self.duplicates = 0
        self._known: dict[str, Verdict] = {}
        # Two show as well as all of them that failures differ.
        self._signatures: set[tuple[Outcome, Cause | None, str]] = set()
        self._in_flight: set[str] = set()
        self.concluded = False

    @property
    @abstractmethod
    def round(self) -> int:
        """The current round, from 1; the last one when finished."""

    @property
    @abstractmethod
    def target(self) -> int:
        """What `unique_successes` has to come to: those of a round or of the whole branch."""

    @property
    @abstractmethod
    def unique_successes(self) -> int:
        """Unique successes towards the target."""

    @property
    @abstractmethod
    def wanted(self) -> int:
        """How many suggestions to ask for now; 0 unless the phase is `ASKING`."""

    @property
    def takes(self) -> int:
        """How many suggestions are taken now: what is wanted, and what was when it was asked for.

        It is never less than was wanted before, until the branch is concluded or has ended.
        """
        return self.wanted

    @abstractmethod
    def suggested(self, keys: Sequence[str]) -> tuple[list[Disposition], list[Observation]]:
        """Take the keys of suggestions, in their order.

        Returns:
            What becomes of each, and what to observe now.

        Raises:
            ValueError: if none are given, or more than are taken.
        """

    @abstractmethod
    def settled(self, key: str, verdict: Verdict) -> list[Observation]:
        """Take the verdict of a sample in flight; what to observe now.

        Raises:
            KeyError: if the sample is not in flight: a verdict is final and comes once.
        """

    @abstractmethod
    def conclude(self) -> list[Observation]:
        """Ask for nothing more: the branch ends as `CONVERGED` once nothing is in flight."""

    @abstractmethod
    def is_new(self, key: str) -> bool:
        """Whether this sample was not suggested before."""

    @property
    def finished(self) -> bool:
        """Whether nothing more will be asked or awaited."""
        return self.phase in FINAL_PHASES

    @property
    def in_flight(self) -> int:
        """Samples sent out and not settled."""
        return len(self._in_flight)

    @property
    def tally(self) -> Counter[Outcome]:
        """Unique settled samples by outcome."""
        return Counter(verdict.outcome for verdict in self._verdicts())

    @property
    def causes(self) -> Counter[Cause]:
        """Unique unsuccessful samples by cause."""
        return Counter(v.cause for v in self._verdicts() if v.cause is not None)

    @property
    def sole_failure(self) -> Verdict | None:
        """The first failure of a `FAILED` branch; all others are the same."""
        if self.phase is not Phase.FAILED:
            return None
        return next(iter(self._known.values()))

    @property
    def gives_up(self) -> bool:
        """Whether nothing was found for so long that the branch waits to be concluded."""
        return False

    def failures(self) -> list[Verdict]:
        """Unique unsuccessful samples, those of the commonest outcome and cause first."""
        failed = [verdict for verdict in self._verdicts() if verdict.outcome != "feasible"]
        counts = Counter((verdict.outcome, verdict.cause) for verdict in failed)
        return sorted(failed, key=lambda one: -counts[one.outcome, one.cause])

    def _verdicts(self) -> Iterable[Verdict]:
        return self._known.values()

    def _take(
        self, keys: Sequence[str], wait: Callable[[Observation], None]
    ) -> tuple[list[Disposition], list[Observation]]:
        """Count suggestions; new samples are in flight from now on.

        Args:
            keys: the keys of the suggested samples, in their order.
            wait: called with each suggestion whose verdict is not known yet.

        Returns:
            What becomes of each, and the duplicates of finished samples.

        Raises:
            ValueError: if none are given, or more than are taken.
        """
        if not 0 < len(keys) <= self.takes:
            raise ValueError(f"{self.takes} suggestions are wanted, not {len(keys)}")
        dispositions: list[Disposition] = []
        known: list[Observation] = []
        for key in keys:
            observation = Observation(self.attempts, key)
            self.attempts += 1
            if self.is_new(key):
                self._in_flight.add(key)
                dispositions.append(Disposition.NEW)
            else:
                self.duplicates += 1
                is_known = key in self._known
                dispositions.append(Disposition.KNOWN if is_known else Disposition.WAITS)
            (known.append if dispositions[-1] is Disposition.KNOWN else wait)(observation)
        return dispositions, known

    def _learn(self, key: str, verdict: Verdict) -> None:
        self._known[key] = verdict
        if len(self._signatures) < 2:
            self._signatures.add(verdict.signature)

    @property
    def _enough(self) -> int:
        return max(self._per_round, ENOUGH_FAILURES)

    def _fruitless(self, otherwise: Phase) -> Phase:
        """`FAILED` where all samples failed alike, and they are enough to judge by."""
        enough = self._enough if self._points is None else min(self._enough, self._points)
        if len(self._known) < enough or len(self._signatures) != 1:
            return otherwise
        ((outcome, _, _),) = self._signatures
        return otherwise if outcome == "feasible" else Phase.FAILED

    def _move(self, phase: Phase) -> None:
        self.phase = moved("a branch", TRANSITIONS, self.phase, phase)


def successes(verdicts: Iterable[Verdict]) -> int:
    """How many of them are feasible."""
    return sum(verdict.outcome == "feasible" for verdict in verdicts)
