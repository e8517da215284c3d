"""Workers by what they publish of themselves, whenever and however often it is heard."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lossy import INTERVAL_SECONDS, at, status

from schemas.events import (
    EvaluationStart,
    EvaluationStarted,
    WorkerHeartbeat,
    WorkerLeft,
    WorkerState,
)
from spica_async.evaluate.fleet import Fleet, FleetView, WorkerEvent, WorkerView

NEEDED = {"ai-dynamo": "1.6.0", "aiconfigurator": "0.12.0"}


def fleet() -> Fleet:
    return Fleet("engine", NEEDED)


def beat(worker: str, second: float, *evaluations: str, **changes: object) -> WorkerHeartbeat:
    data = status(worker, evaluations=list(evaluations)).model_copy(update=changes)
    return WorkerHeartbeat(source=worker, time=at(second), data=data)


def left(worker: str, second: float) -> WorkerLeft:
    """It names what it has given back."""
    data = status(worker, evaluations=["a"])
    return WorkerLeft(source=worker, time=at(second), data=data)


def started(worker: str, second: float, evaluation: str) -> EvaluationStarted:
    data = EvaluationStart(evaluation_id=evaluation, sweep_id="sweep", worker=worker, slot=0)
    return EvaluationStarted(source=worker, time=at(second), data=data)


def test_nobody_is_there_before_anybody_was_heard() -> None:
    assert fleet().held(0.0) == set()
    assert fleet().view(0.0) == FleetView(waiting_for="no worker with engine engine is connected")


def test_a_worker_holds_what_it_says_and_what_it_has_started_since() -> None:
    one = fleet()
    one.heard(beat("w", 1, "a", "b", slots=4), now=100.0)
    one.heard(started("w", 2, "c"), now=101.0)
    assert one.held(101.0) == {"a", "b", "c"}
    assert one.view(101.0).workers == (WorkerView("w", "ready", slots=4, busy=3),)
    one.heard(beat("w", 3, "c", slots=4), now=102.0)
    assert one.held(102.0) == {"c"}
    one.ended("c")
    assert one.held(102.0) == set()
    assert (one.view(102.0).slots, one.view(102.0).busy) == (4, 0)


def test_what_is_older_than_the_last_heartbeat_is_old_news() -> None:
    one = fleet()
    one.heard(beat("w", 5, "new"), now=0.0)
    one.heard(beat("w", 4, "old"), now=0.0)
    one.heard(started("w", 4.5, "ended"), now=0.0)
    one.heard(left("w", 3), now=0.0)
    assert one.held(0.0) == {"new"}
    assert len(one.view(0.0).workers) == 1


def test_a_worker_that_is_silent_for_three_intervals_is_gone_with_what_it_held() -> None:
    one = fleet()
    one.heard(beat("w", 0, "a"), now=100.0)
    last = 100.0 + 3 * INTERVAL_SECONDS
    assert one.held(last) == {"a"}
    assert one.held(last + 0.1) == set()
    assert one.view(last + 0.1).waiting_for is not None
    # By its own clock this is older than what was heard before; but it is there.
    one.heard(beat("w", -5, "b"), now=last + 1)
    assert one.held(last + 1) == {"b"}


def test_what_is_heard_a_second_time_is_no_sign_of_life() -> None:
    one = fleet()
    again = beat("w", 0, "a")
    one.heard(again, now=0.0)
    one.heard(again, now=3 * INTERVAL_SECONDS)
    assert one.held(3 * INTERVAL_SECONDS + 0.1) == set()


def test_a_worker_that_was_only_heard_to_start_something_holds_it_and_is_not_shown() -> None:
    one = fleet()
    one.heard(started("w", 0, "a"), now=0.0)
    assert one.held(0.0) == {"a"}
    assert one.view(0.0).workers == ()
    assert one.held(1000.0) == set()


def test_a_worker_that_has_left_holds_nothing_until_it_comes_back() -> None:
    one = fleet()
    one.heard(beat("w", 0, "a"), now=0.0)
    one.heard(left("w", 1), now=0.0)
    assert one.held(0.0) == set()
    assert one.view(0.0).workers == ()
    one.heard(beat("w", 2, "b"), now=0.0)
    assert one.held(0.0) == {"b"}


@pytest.mark.parametrize(
    ("states", "waiting_for"),
    [
        (["ready", "draining"], None),
        (["starting"], None),
        (["draining", "draining"], "every worker that is connected is about to leave"),
    ],
)
def test_workers_that_are_about_to_leave_are_no_hope(
    states: list[WorkerState], waiting_for: str | None
) -> None:
    one = fleet()
    for number, state in enumerate(states):
        one.heard(beat(f"w{number}", 0, state=state), now=0.0)
    assert one.view(0.0).waiting_for == waiting_for


def test_what_another_engine_has_beside_ours_is_said() -> None:
    one = fleet()
    theirs = NEEDED | {"own performance data": "0123456789ab"}
    one.heard(beat("x", 0, engine_fingerprint="other", versions=theirs), now=0.0)
    assert one.view(0.0).differences == ("own performance data 0123456789ab, needed none",)


def test_workers_of_another_engine_are_apart_and_what_differs_is_said() -> None:
    one = fleet()
    older = NEEDED | {"aiconfigurator": "0.11.0"}
    for name in ("x", "y"):
        one.heard(beat(name, 0, engine_fingerprint="other", versions=older), now=0.0)
    view = one.view(0.0)
    assert (view.workers, view.foreign) == ((), 2)
    assert view.waiting_for == (
        "2 workers have another engine (aiconfigurator 0.11.0, needed 0.12.0)"
    )
    one.heard(beat("z", 0, engine_fingerprint="third", versions={"ai-dynamo": "1.6.0"}), now=0.0)
    one.heard(beat("mute", 0, engine_fingerprint="fourth"), now=0.0)
    one.heard(beat("ours", 0), now=0.0)
    view = one.view(0.0)
    assert [worker.name for worker in view.workers] == ["ours"]
    assert view.waiting_for is None
    assert (view.foreign, set(view.differences)) == (
        4,
        {
            "aiconfigurator 0.11.0, needed 0.12.0",
            "aiconfigurator missing, needed 0.12.0",
            "fourth, needed engine",
        },
    )


def test_troubles_name_their_worker() -> None:
    one = fleet()
    one.heard(beat("b", 0, trouble="no trace"), now=0.0)
    one.heard(beat("a", 0), now=0.0)
    view = one.view(0.0)
    assert view.troubles == ("b: no trace",)
    assert [worker.name for worker in view.workers] == ["a", "b"]


def test_a_time_without_a_zone_is_taken_as_utc() -> None:
    one = fleet()
    one.heard(beat("w", 1, "a"), now=0.0)
    naive = beat("w", 2, "b")
    one.heard(naive.model_copy(update={"time": naive.time.replace(tzinfo=None)}), now=0.0)
    assert one.held(0.0) == {"b"}


WORKERS = st.sampled_from(["v", "w"])
EVALUATIONS = st.sampled_from(["a", "b", "c"])


@st.composite
def published(draw: st.DrawFn) -> list[WorkerEvent]:
    """What workers publish, in their order."""
    events: list[WorkerEvent] = []
    for second in range(draw(st.integers(0, 8))):
        worker = draw(WORKERS)
        kind = draw(st.sampled_from(["beat", "start", "left"]))
        if kind == "start":
            events.append(started(worker, second, draw(EVALUATIONS)))
        elif kind == "left":
            events.append(left(worker, second))
        else:
            events.append(beat(worker, second, *draw(st.sets(EVALUATIONS))))
    return events


@given(published(), st.integers(0, 3), st.randoms(use_true_random=False))
def test_late_double_and_shuffled_news_come_to_the_same(
    events: list[WorkerEvent], doubled: int, chance: random.Random
) -> None:
    in_order, shuffled = fleet(), fleet()
    for event in events:
        in_order.heard(event, now=0.0)
    others = [*events, *events[:doubled]]
    chance.shuffle(others)
    for event in others:
        shuffled.heard(event, now=0.0)
    assert shuffled.held(0.0) == in_order.held(0.0)
    assert shuffled.view(0.0) == in_order.view(0.0)
