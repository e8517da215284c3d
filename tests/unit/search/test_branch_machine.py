"""One branch's decisions under any sequence of suggestions and verdicts, for both schedules."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spica_async.judge.verdict import Verdict
from spica_async.search.schedule import state as branch_state
from spica_async.search.schedule.continuous import ContinuousState
from spica_async.search.schedule.rounds import RoundsState
from spica_async.search.schedule.state import BranchState, Disposition, Observation, Phase

VERDICTS = (
    Verdict("feasible"),
    Verdict("infeasible", "no_kv_room", "1 token"),
    Verdict("infeasible", "no_kv_room", "2 token"),
    Verdict("failed", "replay_error", "it broke"),
    Verdict("unsupported", "engine_unsupported", "it cannot"),
)
verdicts = st.sampled_from(VERDICTS)
# Some branches find nothing, and some of these for one reason.
kinds = st.sampled_from([VERDICTS, VERDICTS[1:], VERDICTS[3:4]])
# Few keys, so that duplicates of every kind are common.
keys = st.integers(0, 11).map(str)


FEW = 1
FRESH = [f"fresh {number}" for number in range(400)]


@pytest.fixture(scope="module", autouse=True)
def _few_failures_are_enough() -> Iterator[None]:
    """Short runs come to every end, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branch_state, "ENOUGH_FAILURES", FEW)
        yield


def one_failure(settled: Iterable[Verdict]) -> bool:
    """Whether all ended alike, and not well."""
    seen = set(settled)
    return len(seen) == 1 and seen != {VERDICTS[0]}


class AnyRounds(RuleBasedStateMachine):
    """Runs a branch beside a ledger of what has happened to it, and compares."""

    @initialize(per_round=st.integers(1, 3), max_rounds=st.integers(1, 3), kind=kinds)
    def start(self, per_round: int, max_rounds: int, kind: Sequence[Verdict]) -> None:
        self.target, self.max_rounds, self.kind = per_round, max_rounds, kind
        self.state = RoundsState(per_round=per_round, max_rounds=max_rounds)
        self.final: Phase | None = None
        self.concluded = False
        self.suggestions: list[str] = []
        self.observed: list[Observation] = []
        self.finished: dict[str, Verdict] = {}  # of ended waves
        self.wave: dict[str, Verdict | None] = {}  # its unique samples, by suggestion
        self.wave_numbers: list[int] = []
        self.round = self.last_round = 1
        self.round_attempts = 0
        self.round_successes = 0

    def missing(self) -> int:
        return min(
            self.target - self.round_successes - len(self.wave),
            11 * self.target - self.round_attempts,
        )

    def expect_end_of_wave(self) -> list[Observation]:
        """What the wave's end observations, once nothing is missing and nothing in flight."""
        if (self.missing() > 0 and not self.concluded) or None in self.wave.values():
            return []
        ended = {key: verdict for key, verdict in self.wave.items() if verdict is not None}
        observations = [Observation(n, self.suggestions[n]) for n in self.wave_numbers]
        self.finished |= ended
        self.round_successes += sum(v.outcome == "feasible" for v in ended.values())
        self.wave, self.wave_numbers = {}, []
        if self.round_successes == self.target and self.round == self.max_rounds:
            self.final = Phase.COMPLETED
        elif self.concluded:
            self.final = Phase.CONVERGED
        elif self.round_successes == self.target:
            self.round, self.round_attempts, self.round_successes = self.round + 1, 0, 0
        elif self.round_attempts == 11 * self.target:
            alike = one_failure(self.finished.values())
            enough = len(self.finished) >= max(self.target, FEW)
            self.final = Phase.FAILED if alike and enough else Phase.STALLED
        return observations

    @precondition(lambda self: self.final is None and self.state.phase is Phase.ASKING)
    @rule(data=st.data())
    def suggest(self, data: st.DataObject) -> None:
        # The driver may have fewer at hand than are wanted.
        proposed = data.draw(st.lists(keys, min_size=1, max_size=self.state.wanted))
        dispositions, observations = self.state.suggested(proposed)
        expected, at_once = [], []
        for key in proposed:
            number = len(self.suggestions)
            self.suggestions.append(key)
            self.round_attempts += 1
            self.last_round = self.round
            if key in self.finished:
                expected.append(Disposition.KNOWN)
                at_once.append(Observation(number, key))
                continue
            expected.append(Disposition.WAITS if key in self.wave else Disposition.NEW)
            self.wave.setdefault(key, None)
            self.wave_numbers.append(number)
        assert dispositions == expected
        assert observations == at_once + self.expect_end_of_wave()
        self.observed += observations

    @precondition(lambda self: None in self.wave.values())
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        verdict = data.draw(st.sampled_from(self.kind))
        key = data.draw(st.sampled_from([k for k, v in self.wave.items() if v is None]))
        self.wave[key] = verdict
        observations = self.state.settled(key, verdict)
        assert observations == self.expect_end_of_wave()
        self.observed += observations

    @precondition(lambda self: self.final is None and not self.concluded and self.suggestions)
    @rule()
    def conclude(self) -> None:
        self.concluded = True
        observations = self.state.conclude()
        assert observations == self.expect_end_of_wave()
        self.observed += observations

    @precondition(lambda self: self.final is not None)
    @rule(verdict=verdicts)
    def nothing_changes_the_end(self, verdict: Verdict) -> None:
        for key in self.finished:
            try:
                self.state.settled(key, verdict)
            except KeyError:
                continue
            raise AssertionError("a final branch took a verdict")

    @invariant()
    def the_branch_is_where_the_ledger_says(self) -> None:
        state = self.state
        in_flight = sum(verdict is None for verdict in self.wave.values())
        assert state.in_flight == in_flight
        assert state.attempts == len(self.suggestions)
        assert state.finished is (self.final is not None)
        if self.final is not None:
            assert state.phase is self.final
            assert state.wanted == 0
            assert state.round == self.last_round
            # Every suggestion was observed, and once.
            assert sorted(one.number for one in self.observed) == list(range(len(self.suggestions)))
        else:
            missing = 0 if self.concluded else self.missing()
            assert state.wanted == max(0, missing)
            assert state.phase is (Phase.ASKING if missing > 0 else Phase.WAITING)
            assert state.round == self.round
            arrived = [v for v in self.wave.values() if v is not None and v.outcome == "feasible"]
            assert state.unique_successes == self.round_successes + len(arrived)
        assert len({one.number for one in self.observed}) == len(self.observed)
        assert all(one.key in self.finished for one in self.observed)
        assert self.round_attempts <= 11 * self.target
        settled = [*self.finished.values(), *(v for v in self.wave.values() if v is not None)]
        successes = sum(v.outcome == "feasible" for v in settled)
        assert state.tally["feasible"] == successes <= self.target * self.max_rounds
        assert state.duplicates == len(self.suggestions) - len(self.finished) - len(self.wave)


class AnyContinuous(RuleBasedStateMachine):
    """Runs a continuous branch beside a ledger of what has happened to it, and compares."""

    @initialize(
        per_round=st.integers(1, 3),
        max_rounds=st.integers(1, 3),
        parallel=st.integers(1, 5),
        batch=st.integers(1, 4),
        kind=kinds,
    )
    def start(
        self, per_round: int, max_rounds: int, parallel: int, batch: int, kind: Sequence[Verdict]
    ) -> None:
        self.kind = kind
        self.per_round, self.budget, self.parallel = per_round, per_round * max_rounds, parallel
        self.batch = batch
        self.state = ContinuousState(
            per_round=per_round, max_rounds=max_rounds, parallel=parallel, batch=batch
        )
        self.suggestions: list[str] = []
        self.observed: list[Observation] = []
        self.verdicts: dict[str, Verdict | None] = {}
        self.concluded = False
        self.gave_up = False
        self.asked = 0

    @property
    def flying(self) -> list[str]:
        return [key for key, verdict in self.verdicts.items() if verdict is None]

    @property
    def settled(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts.values() if verdict is not None]

    @property
    def successes(self) -> int:
        return sum(verdict.outcome == "feasible" for verdict in self.settled)

    @property
    def hopeless(self) -> bool:
        return not self.successes and len(self.settled) >= 11 * max(self.per_round, FEW)

    def expected_wanted(self) -> int:
        if self.concluded or self.hopeless or len(self.flying) > self.parallel:
            return 0
        return max(
            0,
            min(
                max(self.parallel - len(self.flying), self.batch),
                self.budget - self.successes - len(self.flying),
                11 * self.budget - len(self.suggestions),
            ),
        )

    @precondition(lambda self: self.state.wanted > 0 and not self.asked)
    @rule()
    def ask(self) -> None:
        self.asked = self.state.wanted

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def suggest(self, data: st.DataObject) -> None:
        asked, self.asked = self.asked, 0
        if self.concluded or self.state.finished:
            assert self.state.takes == 0
            return
        # Whatever was settled since: what was wanted then is taken now.
        proposed = data.draw(st.lists(keys, min_size=1, max_size=asked))
        dispositions, observations = self.state.suggested(proposed)
        expected, at_once = [], []
        for key in proposed:
            if key not in self.verdicts:
                self.verdicts[key] = None
                expected.append(Disposition.NEW)
            elif self.verdicts[key] is None:
                expected.append(Disposition.WAITS)
            else:
                expected.append(Disposition.KNOWN)
                at_once.append(Observation(len(self.suggestions), key))
            self.suggestions.append(key)
        assert dispositions == expected
        assert observations == at_once
        self.observed += observations

    @precondition(lambda self: self.flying)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        verdict = data.draw(st.sampled_from(self.kind))
        key = data.draw(st.sampled_from(self.flying))
        unobserved = set(range(len(self.suggestions))) - {one.number for one in self.observed}
        observations = self.state.settled(key, verdict)
        self.verdicts[key] = verdict
        assert observations == [
            Observation(n, key) for n in sorted(unobserved) if self.suggestions[n] == key
        ]
        self.observed += observations

    @rule(parallel=st.integers(1, 5))
    def keep_in_flight(self, parallel: int) -> None:
        if not self.state.finished:
            self.state.keep_in_flight(parallel)
            self.parallel = parallel

    @precondition(lambda self: self.suggestions)
    @rule()
    def conclude(self) -> None:
        was = self.state.phase
        self.gave_up |= self.state.gives_up
        assert self.state.conclude() == []
        if self.state.finished and self.state.phase is not Phase.CONVERGED:
            assert self.state.phase is was
        self.concluded = True

    @invariant()
    def the_branch_is_where_the_ledger_says(self) -> None:
        state = self.state
        assert state.in_flight == len(self.flying)
        assert state.attempts == len(self.suggestions) <= 11 * self.budget
        assert state.unique_successes == self.successes <= self.budget
        assert state.tally["feasible"] == self.successes
        assert state.duplicates == len(self.suggestions) - len(self.verdicts)
        assert len({one.number for one in self.observed}) == len(self.observed)
        if state.finished:
            assert state.wanted == 0
            assert not self.flying
            assert state.round == max(1, -(-self.successes // self.per_round))
            assert sorted(one.number for one in self.observed) == list(range(len(self.suggestions)))
            return
        assert state.wanted == self.expected_wanted()
        assert state.gives_up is (self.hopeless and not self.flying)
        assert state.wanted or self.flying or state.gives_up

    @invariant()
    def the_end_is_the_one_that_was_reached(self) -> None:
        if self.state.phase is Phase.COMPLETED:
            assert self.successes == self.budget
        elif self.state.phase is Phase.CONVERGED:
            assert self.concluded
            assert not self.gave_up
        elif self.state.phase in (Phase.STALLED, Phase.FAILED):
            assert len(self.suggestions) == 11 * self.budget or self.gave_up
            enough = len(self.settled) >= max(self.per_round, FEW)
            failed = one_failure(self.settled) and enough
            assert self.state.phase is (Phase.FAILED if failed else Phase.STALLED)
        else:
            assert self.state.phase in (Phase.ASKING, Phase.WAITING)


AnyContinuous.TestCase.settings = settings(deadline=None, max_examples=75, stateful_step_count=60)
TestAnyContinuous = AnyContinuous.TestCase

AnyRounds.TestCase.settings = settings(deadline=None, max_examples=75, stateful_step_count=60)
TestAnyRounds = AnyRounds.TestCase


def drive(
    state: BranchState,
    stream: list[str],
    verdict_of: Mapping[str, Verdict],
    data: st.DataObject,
) -> list[object]:
    """Run a branch to its end with verdicts arriving at any time; what can be seen of it."""
    seen: list[object] = []
    flying: list[str] = []
    suggested = 0
    while not state.finished:
        if state.gives_up:
            state.conclude()
            continue
        wanted = state.wanted
        # While more is wanted, a verdict may come before the next suggestions or after them.
        if flying and (not wanted or data.draw(st.booleans())):
            key = flying.pop(data.draw(st.integers(0, len(flying) - 1)))
            observations = state.settled(key, verdict_of[key])
        else:
            batch = [
                stream[at] if at < len(stream) else f"fresh {at}"
                for at in range(suggested, suggested + wanted)
            ]
            suggested += wanted
            dispositions, observations = state.suggested(batch)
            new = zip(batch, dispositions, strict=True)
            flying += [key for key, what in new if what is Disposition.NEW]
            seen += [wanted, dispositions]
        if observations:
            seen.append(observations)
    return [*seen, state.phase, state.round, state.tally, state.causes, state.sole_failure]


class Remembering(dict[str, Verdict]):
    """Draws the verdict of a key when it is first asked for."""

    def __init__(self, data: st.DataObject) -> None:
        super().__init__()
        self._data = data

    def __missing__(self, key: str) -> Verdict:
        self[key] = self._data.draw(verdicts)
        return self[key]


@settings(deadline=None, max_examples=40)
@given(
    st.data(),
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.integers(0, 9).map(str), max_size=40),
)
def test_the_order_of_arrival_changes_nothing(
    data: st.DataObject, target: int, max_rounds: int, stream: list[str]
) -> None:
    verdict_of = Remembering(data)
    first, second = (
        drive(RoundsState(per_round=target, max_rounds=max_rounds), stream, verdict_of, data)
        for _ in range(2)
    )
    assert first == second


@settings(deadline=None, max_examples=40)
@given(
    st.data(),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 4),
    st.lists(st.integers(0, 9).map(str), max_size=40),
)
def test_without_a_success_so_many_distinct_samples_are_tried_in_any_order(
    data: st.DataObject, per_round: int, parallel: int, batch: int, stream: list[str]
) -> None:
    state = ContinuousState(per_round=per_round, max_rounds=9, parallel=parallel, batch=batch)
    drive(state, stream, dict.fromkeys(itertools.chain(stream, FRESH), VERDICTS[3]), data)
    assert state.phase is Phase.FAILED
    tried = state.attempts - state.duplicates
    assert 11 * per_round <= tried <= 11 * per_round + max(parallel, batch) + batch


@settings(deadline=None, max_examples=40)
@given(st.data(), st.integers(1, 4), st.integers(1, 5))
def test_enumerated_points_end_exhausted_or_with_their_one_cause(
    data: st.DataObject, target: int, max_rounds: int
) -> None:
    points = data.draw(st.integers(1, target * max_rounds))
    verdict_of = Remembering(data)
    state: BranchState = (
        RoundsState(per_round=target, max_rounds=max_rounds, points=points)
        if data.draw(st.booleans())
        else ContinuousState(
            per_round=target, max_rounds=max_rounds, points=points, parallel=2, batch=2
        )
    )
    drive(state, [str(number) for number in range(points)], verdict_of, data)
    assert state.attempts == sum(state.tally.values()) == points
    alike = one_failure(verdict_of.values())
    assert state.phase is (Phase.FAILED if alike else Phase.EXHAUSTED)
