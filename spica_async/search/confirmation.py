"""Decides what is measured again once the search is over.

Pure: no clock, no I/O. The driver starts what `next_replay` says, and hands back what has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count

from schemas.config import SmartSearchConfig
from spica_async.judge.ranking import MIN_REPLICATES, is_confirmed, ordered
from spica_async.judge.scoring import Candidate
from spica_async.space.sample import is_noisy


@dataclass(frozen=True, slots=True)
class Replay:
    """One more replay of a candidate.

    Attributes:
        candidate_id: The candidate.
        replicate: How often it was to be measured before, under this load.
        load: Factor of the workload's own load.
    """

    candidate_id: str
    replicate: int
    load: float = 1.0


class Confirmation:
    """Has the best candidates measured until their means are known, then under other loads.

    Each time the best are those by what is known until then, so that one that was lucky gives way
    to the next.

    Args:
        config: Of the sweep.
        enabled: Whether anything is measured again at all.
    """

    def __init__(self, config: SmartSearchConfig, *, enabled: bool) -> None:
        self._settings = config.confirm
        self._goal = config.goal
        self._enabled = enabled and config.confirm.enabled != "off"
        self._in_flight: set[Replay] = set()
        self._replays = 0
        self._failed: Counter[str] = Counter()
        self._loads: set[tuple[str, float]] = set()
        self._replayed: set[str] = set()

    @property
    def replays(self) -> int:
        """How many have ended so far, under any load."""
        return self._replays + len(self._loads)

    def is_over(self, candidates: Sequence[Candidate], baseline: Candidate | None = None) -> bool:
        """Whether nothing is left to be measured; see `next_replay`."""
        return not self._in_flight and self.next_replay(candidates, baseline) is None

    def next_replay(
        self, candidates: Sequence[Candidate], baseline: Candidate | None = None
    ) -> Replay | None:
        """What to start next; None: nothing, or nothing before something in flight has ended.

        Args:
            candidates: All of the sweep, as they are known by now.
            baseline: What they are held against, which is confirmed with the best of them.
        """
        if not self._enabled:
            return None
        best = self._best(candidates)
        with_baseline = [*best, baseline] if best and baseline is not None else best
        return self._replicate(with_baseline) or self._under_other_load(best)

    def started(self, replay: Replay) -> None:
        """Take note that a replay was sent."""
        self._in_flight.add(replay)

    def ended(self, replay: Replay, *, sound: bool) -> None:
        """Take note of a result.

        Args:
            replay: It may be one that an earlier run has started.
            sound: Whether the candidate has one more report, or another load's score, by it.
        """
        self._in_flight.discard(replay)
        if replay.load == 1.0:
            self._replays += 1
            self._replayed.add(replay.candidate_id)
            self._failed[replay.candidate_id] += not sound
        else:
            self._loads.add((replay.candidate_id, replay.load))

    def _best(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        groups = ordered(candidates, self._goal)
        if self._goal.is_pareto:
            return list(chain(*groups))
        by_score = sorted(chain(*groups), key=lambda one: -one.score)
        return by_score[: self._settings.top]

    def _is_subject(self, candidate: Candidate) -> bool:
        return self._settings.enabled == "on" or is_noisy(candidate.sample)

    def _replicate(self, best: Sequence[Candidate]) -> Replay | None:
        """One more replay of the candidate that has had the fewest."""
        own = [one.candidate_id for one in self._in_flight if one.load == 1.0]
        if self._replays + len(own) >= self._settings.max_replays:
            return None
        flying = Counter(own)
        wanting = [one for one in best if self._wants(one, flying[one.candidate_id])]
        if not wanting:
            return None
        chosen = min(wanting, key=lambda one: self._made(one) + flying[one.candidate_id])
        name = chosen.candidate_id
        taken = {
            one.replicate for one in self._in_flight if one.candidate_id == name and one.load == 1.0
        } | chosen.taken
        return Replay(name, next(number for number in count() if number not in taken))

    def _made(self, candidate: Candidate) -> int:
        return candidate.replicates + self._failed[candidate.candidate_id]

    def _wants(self, candidate: Candidate, flying: int) -> bool:
        if not self._is_subject(candidate):
            return False
        # A sample whose replays cannot differ is measured twice, to see that they do not.
        least = MIN_REPLICATES if is_noisy(candidate.sample) else 2
        if self._made(candidate) + flying < least:
            return True
        if flying or not is_noisy(candidate.sample):
            return False  # It is not known yet what is wanted.
        if candidate.candidate_id not in self._replayed and not candidate.has_artifact:
            return True  # What is known by the search or the cache has left no artifact.
        precision = self._settings.precision
        return not all(mean.is_within(precision) for mean in candidate.means.values())

    def _under_other_load(self, best: Sequence[Candidate]) -> Replay | None:
        if any(replay.load == 1.0 for replay in self._in_flight):
            return None
        for one in best:
            if not (self._goal.robust or (self._is_subject(one) and is_confirmed(one))):
                continue
            for load in self._settings.other_loads:
                replay = Replay(one.candidate_id, 0, load)
                if replay not in self._in_flight and (one.candidate_id, load) not in self._loads:
                    return replay
        return None
