"""One branch's decisions, step by step at their boundaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from spica_async.judge.verdict import Verdict
from spica_async.search.schedule.continuous import ContinuousState
from spica_async.search.schedule.rounds import RoundsState
from spica_async.search.schedule.state import (
    ATTEMPTS_PER_TARGET,
    FINAL_PHASES,
    TRANSITIONS,
    BranchState,
    Disposition,
    Observation,
    Phase,
)

FEASIBLE = Verdict("feasible")
KNOWN, NEW, WAITS = Disposition.KNOWN, Disposition.NEW, Disposition.WAITS


def no_room(detail: str = "agg: 100 KV tokens") -> Verdict:
    return Verdict("infeasible", "no_kv_room", detail)


def one_by_one(
    state: RoundsState, keys: Sequence[str], verdict: Verdict = FEASIBLE
) -> list[Observation]:
    """Take single suggestions, each settled as soon as it is sent."""
    observed = []
    for key in keys:
        dispositions, observations = state.suggested([key])
        observed += observations
        if dispositions == [NEW]:
            observed += state.settled(key, verdict)
    return observed


def drain(state: BranchState, verdict_of: Callable[[int], Verdict]) -> Counter[str]:
    """Take fresh suggestions until the state is final; how often each was observed."""
    observed: Counter[str] = Counter()
    while not state.finished:
        keys = [str(state.attempts + i) for i in range(state.wanted)]
        _, observations = state.suggested(keys)
        for key in keys:
            observations += state.settled(key, verdict_of(int(key)))
        observed.update(one.key for one in observations)
    return observed


def test_a_wave_asks_for_what_is_missing_and_waits_for_all_of_it() -> None:
    state = RoundsState(per_round=3, max_rounds=2)
    assert (state.phase, state.wanted, state.round, state.attempts) == (Phase.ASKING, 3, 1, 0)
    assert state.suggested(["a", "b", "a"]) == ([NEW, NEW, WAITS], [])
    # The duplicate fills no place, so one more is asked for in the same wave.
    assert (state.phase, state.wanted, state.in_flight) == (Phase.ASKING, 1, 2)
    assert state.settled("a", FEASIBLE) == []
    assert (state.wanted, state.in_flight) == (1, 1)
    assert state.suggested(["a"]) == ([WAITS], [])  # it has arrived, and is observed with the wave
    assert state.wanted == 1
    assert state.suggested(["c"]) == ([NEW], [])
    assert (state.phase, state.wanted, state.in_flight) == (Phase.WAITING, 0, 2)
    assert state.settled("c", no_room()) == []
    assert state.settled("b", FEASIBLE) == [
        Observation(0, "a"),
        Observation(1, "b"),
        Observation(2, "a"),
        Observation(3, "a"),
        Observation(4, "c"),
    ]
    # Two of three succeeded: the round goes on.
    assert (state.phase, state.round, state.unique_successes, state.wanted) == (
        Phase.ASKING,
        1,
        2,
        1,
    )
    assert (state.attempts, state.duplicates) == (5, 2)
    assert state.tally == {"feasible": 2, "infeasible": 1}
    assert state.causes == {"no_kv_room": 1}


def test_a_duplicate_of_a_finished_sample_is_observed_at_once_and_uses_no_budget() -> None:
    state = RoundsState(per_round=2, max_rounds=2)
    state.suggested(["a", "b"])
    state.settled("a", FEASIBLE)
    state.settled("b", no_room())
    assert state.suggested(["b"]) == ([KNOWN], [Observation(2, "b")])
    assert state.suggested(["a"]) == ([KNOWN], [Observation(3, "a")])
    assert (state.wanted, state.round, state.duplicates) == (1, 1, 2)
    one_by_one(state, ["c"])
    # What an earlier round found is known in the next.
    assert (state.round, state.wanted) == (2, 2)
    assert state.suggested(["a", "d"]) == ([KNOWN, NEW], [Observation(5, "a")])
    assert state.wanted == 1


def test_every_round_finds_its_target_and_then_the_branch_is_complete() -> None:
    state = RoundsState(per_round=2, max_rounds=3)
    observed = drain(state, lambda _: FEASIBLE)
    assert (state.phase, state.round, state.attempts) == (Phase.COMPLETED, 3, 6)
    assert observed == {str(number): 1 for number in range(6)}
    assert state.tally == {"feasible": 6}
    assert state.sole_failure is None


@pytest.mark.parametrize("target", [1, 3])
def test_a_round_takes_eleven_attempts_for_each_of_its_target(target: int) -> None:
    assert ATTEMPTS_PER_TARGET == 11
    state = RoundsState(per_round=target, max_rounds=5)
    first_round = [str(number) for number in range(target)]
    state.suggested(first_round)
    for key in first_round:
        state.settled(key, FEASIBLE)
    assert (state.round, state.attempts) == (2, target)
    taken = 0
    while not state.finished:
        assert state.wanted == min(target, 11 * target - taken)
        taken += state.wanted
        state.suggested(["0"] * state.wanted)
    assert (state.phase, state.round, taken) == (Phase.STALLED, 2, 11 * target)


@pytest.mark.parametrize(("last", "phase"), [("c", Phase.COMPLETED), ("a", Phase.STALLED)])
def test_the_last_attempt_may_still_complete_the_round(last: str, phase: Phase) -> None:
    state = RoundsState(per_round=2, max_rounds=1)
    state.suggested(["a", "b"])
    state.settled("a", FEASIBLE)
    state.settled("b", no_room())
    one_by_one(state, ["a"] * 19)
    # One success is missing, and one of the 22 attempts is left.
    assert (state.phase, state.wanted) == (Phase.ASKING, 1)
    assert one_by_one(state, [last]) == [Observation(21, last)]
    assert (state.phase, state.attempts) == (phase, 22)


def test_attempts_that_run_out_end_the_wave_and_its_duplicates_are_observed() -> None:
    state = RoundsState(per_round=2, max_rounds=3)
    state.suggested(["a", "b"])
    state.settled("a", FEASIBLE)
    state.settled("b", no_room())
    one_by_one(state, ["b"] * 18)
    assert (state.attempts, state.wanted) == (20, 1)
    one_by_one(state, ["a"])
    assert state.suggested(["c"]) == ([NEW], [])
    assert (state.phase, state.wanted) == (Phase.WAITING, 0)
    assert state.settled("c", FEASIBLE) == [Observation(21, "c")]
    # The round is complete with its very last attempt, and the next has attempts of its own.
    assert (state.phase, state.round, state.wanted) == (Phase.ASKING, 2, 2)


def test_a_wave_that_waits_ends_stalled_when_it_fails_with_the_last_attempt() -> None:
    state = RoundsState(per_round=1, max_rounds=3)
    one_by_one(state, ["a"])
    one_by_one(state, ["a"] * 10)
    assert (state.round, state.wanted) == (2, 1)
    assert one_by_one(state, ["b"], no_room()) == [Observation(11, "b")]
    assert state.phase is Phase.STALLED


@pytest.mark.parametrize(
    ("verdicts", "phase"),
    [
        ([no_room()], Phase.FAILED),
        ([Verdict("failed", "replay_error")], Phase.FAILED),
        ([Verdict("unsupported")], Phase.FAILED),
        # Figures in the details differ for a reason.
        ([no_room("100 tokens"), no_room("7 tokens")], Phase.STALLED),
        ([no_room(), Verdict("failed", "no_kv_room", no_room().detail)], Phase.STALLED),
        ([no_room(), Verdict("infeasible", "over_budget", no_room().detail)], Phase.STALLED),
        ([FEASIBLE, *[no_room()] * 50], Phase.STALLED),
        ([*[no_room()] * 32, FEASIBLE], Phase.STALLED),
    ],
    ids=str,
)
def test_a_round_goes_on_to_its_last_attempt_whatever_its_samples_fail_by(
    verdicts: list[Verdict], phase: Phase
) -> None:
    state = RoundsState(per_round=3, max_rounds=3)
    drain(state, lambda number: verdicts[number % len(verdicts)])
    assert (state.phase, state.attempts) == (phase, 33)
    assert state.sole_failure == (verdicts[0] if phase is Phase.FAILED else None)


@pytest.mark.parametrize(
    ("per_round", "max_rounds", "tried"), [(1, 20, 88), (3, 20, 88), (3, 1, 33), (16, 20, 176)]
)
def test_without_rounds_a_branch_that_finds_nothing_is_given_up_after_a_rounds_attempts(
    per_round: int, max_rounds: int, tried: int
) -> None:
    for details, phase in ((("a",), Phase.FAILED), (("1", "2"), Phase.STALLED)):
        state = ContinuousState(per_round=per_round, max_rounds=max_rounds, parallel=1, batch=1)
        while state.wanted:
            keys = [str(state.attempts + i) for i in range(state.wanted)]
            state.suggested(keys)
            for key in keys:
                state.settled(key, no_room(details[int(key) % len(details)]))
        if tried < 11 * per_round * max_rounds:
            assert (state.phase, state.gives_up) == (Phase.WAITING, True)
            state.conclude()
            state.conclude()
        assert (state.phase, state.gives_up) == (phase, False)
        assert state.attempts == tried


def test_a_success_among_the_last_in_flight_keeps_a_branch_going() -> None:
    state = ContinuousState(per_round=1, max_rounds=20, parallel=3, batch=1)
    state.suggested(["0", "1", "2"])
    for number in range(88):
        state.settled(str(number), no_room())
        if state.wanted:
            state.suggested([str(state.attempts) for _ in range(1)])
    # What was asked for before is taken all the same.
    assert (state.wanted, state.takes > 0, state.in_flight, state.gives_up) == (0, True, 2, False)
    state.settled("88", FEASIBLE)
    assert (state.phase, state.wanted) == (Phase.ASKING, 2)


@pytest.mark.parametrize(
    ("asked", "round_", "found"),
    [("", 1, 0), ("a", 1, 1), ("ab", 1, 2), ("abc", 2, 1), ("abcd", 2, 2)],
)
def test_a_concluded_branch_ends_in_the_round_that_was_last_asked(
    asked: str, round_: int, found: int
) -> None:
    state = RoundsState(per_round=2, max_rounds=3)
    one_by_one(state, asked)
    state.conclude()
    assert (state.phase, state.round) == (Phase.CONVERGED, round_)
    assert state.unique_successes == found


def test_what_others_conclude_is_no_giving_up() -> None:
    state = ContinuousState(per_round=1, max_rounds=1, parallel=1, batch=1)
    state.suggested(["a"])
    state.settled("a", no_room())
    state.conclude()
    assert state.phase is Phase.CONVERGED


def test_the_commonest_failures_come_first() -> None:
    state = RoundsState(per_round=4, max_rounds=1)
    broken = Verdict("failed", "replay_error", "it broke")
    state.suggested(["a", "b", "c", "d"])
    for key, verdict in {"a": broken, "b": no_room("1"), "c": FEASIBLE, "d": no_room("2")}.items():
        state.settled(key, verdict)
    assert state.failures() == [no_room("1"), no_room("2"), broken]


def test_fewer_failures_than_a_rounds_target_prove_nothing() -> None:
    state = RoundsState(per_round=3, max_rounds=1)
    state.suggested(["a", "b", "b"])
    state.suggested(["a"])
    one_by_one(state, ["a"] * 28)
    assert state.wanted == 1
    state.suggested(["a"])
    # The attempts are used up with two unique samples in flight.
    assert (state.wanted, state.in_flight, state.finished) == (0, 2, False)
    state.settled("a", no_room())
    state.settled("b", no_room())
    assert state.phase is Phase.STALLED


def test_failures_in_several_waves_and_after_a_success() -> None:
    state = RoundsState(per_round=2, max_rounds=2)
    state.suggested(["a", "b"])
    state.settled("a", no_room())
    state.settled("b", Verdict("failed", "replay_error"))
    state.suggested(["c", "d"])
    state.settled("c", no_room())
    state.settled("d", no_room())
    assert state.phase is Phase.ASKING  # two causes
    assert state.wanted == 2
    assert state.causes == {"no_kv_room": 3, "replay_error": 1}


@pytest.mark.parametrize("points", [1, 5, 6])
def test_enumerated_points_are_each_taken_once(points: int) -> None:
    state = RoundsState(per_round=3, max_rounds=2, points=points)
    observed = drain(state, lambda number: no_room() if number == 2 else FEASIBLE)
    assert observed == {str(number): 1 for number in range(points)}
    assert (state.phase, state.attempts, state.duplicates) == (Phase.EXHAUSTED, points, 0)


def test_enumerated_points_have_no_limit_of_attempts_but_their_number() -> None:
    state = RoundsState(per_round=1, max_rounds=40, points=30)
    # One success, then failures for many reasons: more than 11 attempts in one round.
    observed = drain(state, lambda number: no_room("x" * number) if number else FEASIBLE)
    assert (state.phase, len(observed)) == (Phase.EXHAUSTED, 30)


@pytest.mark.parametrize("points", [1, 2, 100])
def test_enumerated_points_are_all_tried_though_all_fail_for_one_cause(points: int) -> None:
    states: list[BranchState] = [
        RoundsState(per_round=2, max_rounds=60, points=points),
        ContinuousState(per_round=2, max_rounds=60, points=points, parallel=1, batch=1),
    ]
    for state in states:
        drain(state, lambda _: no_room())
        assert (state.phase, state.attempts) == (Phase.FAILED, points)


def test_other_than_the_wanted_number_of_suggestions_is_refused() -> None:
    state = RoundsState(per_round=2, max_rounds=1)
    for keys in ([], ["a", "b", "c"]):
        with pytest.raises(ValueError, match="2 suggestions are wanted"):
            state.suggested(keys)
    assert (state.attempts, state.in_flight) == (0, 0)
    state.suggested(["a", "b"])
    with pytest.raises(ValueError, match="0 suggestions are wanted, not 0"):
        state.suggested([])


def test_a_verdict_comes_once_and_for_what_is_in_flight() -> None:
    state = RoundsState(per_round=2, max_rounds=1)
    state.suggested(["a", "b"])
    with pytest.raises(KeyError):
        state.settled("c", FEASIBLE)
    state.settled("a", FEASIBLE)
    with pytest.raises(KeyError):
        state.settled("a", FEASIBLE)
    state.settled("b", FEASIBLE)
    assert state.tally == {"feasible": 2}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"per_round": 0, "max_rounds": 1}, "per_round and max_rounds are 1 or more"),
        ({"per_round": 1, "max_rounds": 0}, "per_round and max_rounds are 1 or more"),
        ({"per_round": 2, "max_rounds": 3, "points": 0}, "enumerated points are 1 or more"),
        ({"per_round": 2, "max_rounds": 3, "points": 7}, "within the budget"),
    ],
)
def test_a_branch_starts_with_a_budget(arguments: dict[str, int], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        RoundsState(**arguments)


def test_final_phases_are_final() -> None:
    assert {phase for phase, following in TRANSITIONS.items() if not following} == FINAL_PHASES
    assert set(Phase) - FINAL_PHASES == {Phase.ASKING, Phase.WAITING}


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"parallel": 0}])
def test_a_continuous_branch_needs_something_to_do(wrong: dict[str, int]) -> None:
    numbers = {"per_round": 1, "max_rounds": 1, "parallel": 1, "batch": 1, **wrong}
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is 1 or more"):
        ContinuousState(**numbers)


def test_slots_change_nothing_for_a_branch_that_has_ended() -> None:
    state = ContinuousState(per_round=1, max_rounds=1, parallel=1, batch=1)
    drain(state, lambda _: FEASIBLE)
    state.keep_in_flight(5)
    assert (state.phase, state.wanted) == (Phase.COMPLETED, 0)


def test_the_target_of_a_round_is_no_more_than_the_list_has_left() -> None:
    assert RoundsState(per_round=3, max_rounds=2).target == 3
    state = RoundsState(per_round=3, max_rounds=2, points=4)
    assert (state.target, state.unique_successes) == (3, 0)
    one_by_one(state, ["a", "b", "c"])
    assert (state.round, state.target) == (2, 1)
