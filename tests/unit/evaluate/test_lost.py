"""Which requests are nowhere any more."""

from __future__ import annotations

import pytest

from spica_async.evaluate.lost import LostRequests

NOBODY: frozenset[str] = frozenset()


@pytest.fixture
def lost() -> LostRequests:
    return LostRequests(patience_seconds=30.0)


def test_what_neither_the_queue_nor_a_worker_has_is_due_after_a_while(lost: LostRequests) -> None:
    lost.sent("a", 0.0)
    assert lost.due(held=NOBODY, queued=0, now=5.0) == []
    assert lost.due(held=NOBODY, queued=0, now=34.9) == []
    assert lost.due(held=NOBODY, queued=0, now=35.0) == ["a"]


def test_what_a_worker_holds_or_the_queue_may_hold_is_not_lost(lost: LostRequests) -> None:
    lost.sent("a", 0.0)
    for now in range(0, 1000, 5):
        assert lost.due(held={"a"}, queued=0, now=float(now)) == []
    for now in range(1000, 2000, 5):
        assert lost.due(held=NOBODY, queued=1, now=float(now)) == []
    # It is missing from the first look on that finds it nowhere.
    assert lost.due(held=NOBODY, queued=0, now=2000.0) == []
    assert lost.due(held=NOBODY, queued=0, now=2030.0) == ["a"]


def test_patience_doubles_with_each_sending_for_that_one_alone_and_has_an_end(
    lost: LostRequests,
) -> None:
    now = 0.0
    lost.sent("a", now)
    waited = []
    for _ in range(8):
        began = now
        lost.due(held=NOBODY, queued=0, now=now)
        while not lost.due(held=NOBODY, queued=0, now=now):
            now += 5.0
        waited.append(now - began)
        lost.sent("a", now)
    assert waited == [30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 960.0, 960.0]
    lost.sent("b", now)
    lost.due(held=NOBODY, queued=0, now=now)
    assert lost.due(held=NOBODY, queued=0, now=now + 30.0) == ["b"]


def test_one_that_a_later_one_has_overtaken_is_not_in_the_queue(lost: LostRequests) -> None:
    lost.sent("a", 0.0)
    lost.sent("b", 0.0)
    lost.sent("c", 0.0)
    assert lost.due(held={"b"}, queued=9, now=0.0) == []
    assert lost.due(held={"b"}, queued=9, now=30.0) == ["a"]
    lost.ended("c")
    assert lost.due(held={"b"}, queued=9, now=60.0) == ["a"]
    # Sent again, it is at the end of the queue.
    lost.sent("a", 60.0)
    assert lost.due(held=NOBODY, queued=9, now=1000.0) == []
    assert lost.due(held=NOBODY, queued=9, now=2000.0) == []


def test_one_that_was_held_may_have_been_given_back(lost: LostRequests) -> None:
    lost.sent("a", 0.0)
    lost.sent("b", 0.0)
    assert lost.due(held={"a"}, queued=0, now=0.0) == []
    for now in (5.0, 50.0, 500.0):
        assert lost.due(held={"b"}, queued=1, now=now) == []


def test_what_the_bus_has_dropped_is_due_however_long_the_queue_is(lost: LostRequests) -> None:
    lost.sent("a", 0.0)
    lost.dropped("a")
    assert lost.due(held=NOBODY, queued=9, now=29.0) == []
    assert lost.due(held=NOBODY, queued=9, now=30.0) == ["a"]
    lost.sent("a", 30.0)
    assert lost.due(held=NOBODY, queued=9, now=1000.0) == []
    lost.dropped("a")
    assert lost.due(held={"a"}, queued=9, now=1000.0) == []
    assert lost.due(held=NOBODY, queued=9, now=2000.0) == []


def test_what_has_ended_is_not_looked_for(lost: LostRequests) -> None:
    lost.sent("a", 0.0)
    lost.sent("b", 0.0)
    assert lost.queue_deleted() == ["a", "b"]
    lost.ended("a")
    lost.ended("never sent")
    lost.dropped("a")
    lost.due(held=NOBODY, queued=0, now=0.0)
    assert lost.due(held=NOBODY, queued=0, now=100.0) == ["b"]
    assert lost.queue_deleted() == ["b"]


def test_what_a_worker_has_said_to_hold_did_not_wait_however_late_its_sending_is_known(
    lost: LostRequests,
) -> None:
    lost.held({"a", "b"})
    for name in ("a", "b", "c"):
        lost.sent(name, 0.0)
    lost.ended("b")
    lost.sent("b", 0.0)
    assert lost.queue_deleted() == ["c", "b"]
    # Of the next queue nobody has had any yet.
    assert lost.queue_deleted() == ["a", "c", "b"]


def test_what_waited_in_a_deleted_queue_is_due_at_once_and_what_was_held_as_ever(
    lost: LostRequests,
) -> None:
    for name in "abcd":
        lost.sent(name, 0.0)
    lost.seen({"a", "b"})
    lost.dropped("b")
    assert lost.queue_deleted() == ["b", "c", "d"]
    for name in "bcd":
        lost.sent(name, 0.0)
    # It cannot have been given back to a queue that is gone, so it does not wait in the new one.
    assert lost.due(held=NOBODY, queued=3, now=10.0) == []
    assert lost.due(held=NOBODY, queued=3, now=39.0) == []
    assert lost.due(held=NOBODY, queued=3, now=40.0) == ["a"]
    assert lost.due(held={"a"}, queued=3, now=41.0) == []
