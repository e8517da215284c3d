"""Which fields of a line are read, and what the turns of sessions come to."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spica_async.traces.check import (
    MOST_DAYS,
    TraceError,
    check_trace,
    normal_copy,
    read_requests,
)
from spica_async.traces.rows import INERT, RowError, parse_row
from spica_async.traces.sessions import Sessions

ROW = {"input_length": 1024, "output_length": 8, "hash_ids": [1, 2]}
DAY_MS = 24 * 3600 * 1000


def line(**fields: Any) -> str:
    return json.dumps(ROW | fields)


def written(folder: Path, *lines: str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(lines))
    return path


def test_a_trace_of_sessions(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        line(timestamp=100, session_id="a"),
        line(timestamp=150),
        line(timestamp=200, session_id="a"),
        line(session_id="a", delay=50.5),
        line(session_id="a"),
        line(timestamp=300, session_id="b", delay=0),
    )

    facts = check_trace(path)

    assert (facts.requests, facts.sessions, facts.later_turns) == (6, 1, 3)
    assert facts.delays_ms == 150.5
    assert facts.is_sorted
    assert facts.is_normal
    arrivals = [request.timestamp_ms for request in read_requests(path)]
    assert arrivals == [100, 150, 200, 250.5, 250.5, 300]


def test_other_names_are_read_and_written_as_the_usual_ones(tmp_path: Path) -> None:
    row = {"created_time": 7.5, "input_tokens": 9, "output_tokens": 3, "hash_ids": [1]}
    path = written(
        tmp_path,
        json.dumps({"session_id": "a", **row}),
        line(session_id="a", delay_ms=4, timestamp=8),
    )

    facts = check_trace(path)

    assert (facts.input_tokens, facts.output_tokens, facts.is_normal) == (1033, 11, False)
    assert [request.timestamp_ms for request in read_requests(path)] == [7.5, 11.5]
    first, second = normal_copy(path, tmp_path / "copies").read_text().splitlines()
    assert json.loads(first) == {
        "session_id": "a",
        "timestamp": 7.5,
        "input_length": 9,
        "output_length": 3,
        "hash_ids": [1],
    }
    assert json.loads(second) == {**ROW, "session_id": "a", "delay": 4, "timestamp": 8}


def test_what_is_not_read_is_left_out_of_the_copy_and_named(tmp_path: Path) -> None:
    inert = dict.fromkeys(INERT, 7)
    path = written(tmp_path, line(timestamp=0, session_id=None, text="secret", **inert))

    facts = check_trace(path)

    assert set(facts.others) == {"text", *INERT}
    assert not facts.is_normal
    copy = normal_copy(path, tmp_path / "copies")
    assert json.loads(copy.read_text()) == {**ROW, "timestamp": 0}


def test_names_of_endless_fields_are_not_kept(tmp_path: Path) -> None:
    path = written(tmp_path, *(line(timestamp=n, **{f"f{n}": 1}) for n in range(100)))
    assert len(check_trace(path).others) == 8


def test_a_session_keeps_clear_of_the_names_that_the_replay_gives(tmp_path: Path) -> None:
    path = written(tmp_path, line(timestamp=0), line(timestamp=1, session_id="request_1"))
    assert not check_trace(path).is_normal
    copied = normal_copy(path, tmp_path / "copies").read_text().splitlines()
    assert json.loads(copied[1])["session_id"] == "session request_1"


BAD = {
    "number as session": (line(timestamp=0, session_id=7), "session_id is 7; allowed: a text"),
    "empty session": (line(timestamp=0, session_id=""), 'session_id is ""; allowed: a text'),
    "half a character": (line(timestamp=0, session_id="\ud800"), "session_id is"),
    "delay on a first turn": (
        line(timestamp=0, session_id="new", delay=7),
        "delay is 7.0 on the first turn of its session",
    ),
    "delay without a session": (line(timestamp=0, delay=7), "delay is 7.0 on the first turn"),
    "first turn without a timestamp": (line(session_id="new"), "timestamp is missing, on the"),
    "no session and no timestamp": (line(), "timestamp is missing"),
    "negative delay": (line(session_id="a", delay=-1), "delay is -1; allowed: a finite number"),
    "text as delay": (line(session_id="a", delay="7"), 'delay is "7"; allowed: a finite number'),
    "two names of one field": (
        line(timestamp=0, created_time=0),
        "created_time stands beside timestamp",
    ),
    "two delays": (line(session_id="a", delay=1, delay_ms=1), "delay_ms stands beside delay"),
    "turns in no order": (
        line(session_id="a", timestamp=5, delay=1),
        'the turns of session "a" stand neither',
    ),
    "nanoseconds": (line(timestamp=1_700_000_000_000_000_000), "timestamp is 17000000"),
    "a day that is far": (line(timestamp=1_700_000_000_000), "arrives 19,676 days after the"),
    "a delay that is far": (line(session_id="a", delay=1e13), "arrives 115,741 days after"),
}


@pytest.mark.parametrize(("bad", "problem"), BAD.values(), ids=BAD)
def test_a_bad_line_is_named(tmp_path: Path, bad: str, problem: str) -> None:
    path = written(tmp_path, line(timestamp=10, session_id="a"), bad, line(timestamp=20))
    with pytest.raises(TraceError) as caught:
        check_trace(path)
    assert caught.value.line == 2
    assert problem in str(caught.value)


def test_a_clock_may_start_anywhere(tmp_path: Path) -> None:
    start = 1_700_000_000_000
    path = written(tmp_path, line(timestamp=start), line(timestamp=start + MOST_DAYS * DAY_MS))
    assert check_trace(path).duration_ms == MOST_DAYS * DAY_MS


def test_turns_without_delays_may_stand_in_any_order(tmp_path: Path) -> None:
    rows = [line(timestamp=t, session_id=s) for s in "ab" for t in (0, 7, 11)]
    random.Random(5).shuffle(rows)
    path = written(tmp_path, *rows)
    assert not check_trace(path).is_sorted
    copy = normal_copy(path, tmp_path / "copies")
    facts = check_trace(copy)
    assert (facts.is_sorted, facts.sessions, facts.later_turns) == (True, 2, 4)
    assert [request.timestamp_ms for request in read_requests(copy)] == [0, 0, 7, 7, 11, 11]


turns = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.none() | st.integers(0, 50),
        st.none() | st.integers(0, 5),
    ),
    max_size=12,
)


@example([("a", 5, 0), ("a", 3, None)])
@example([("a", 5, None), ("b", 3, None), ("a", 3, None), ("a", 9, None)])
@given(turns)
def test_sorting_keeps_every_session(rows: list[tuple[str, int | None, int | None]]) -> None:
    """What may stand as it is may be sorted, and every turn is then where and when it was."""

    def placed(lines: list[bytes]) -> list[tuple[float, float]]:
        sessions = Sessions()
        found = []
        for text in lines:
            row = parse_row(text, 512)
            assert row is not None
            turn = sessions.place(row)
            found.append((turn.order_ms, turn.arrival_ms))
        return found

    lines = []
    for number, (session, timestamp, delay) in enumerate(rows):
        fields = {"session_id": session, "timestamp": timestamp, "delay": delay}
        given_fields = {k: v for k, v in fields.items() if v is not None}
        lines.append(json.dumps({**ROW, "output_length": number + 1, **given_fields}).encode())
    try:
        before = placed(lines)
    except RowError:
        return
    order = sorted(range(len(lines)), key=lambda n: before[n][0])
    after = placed([lines[n] for n in order])
    assert [arrival for _, arrival in after] == [before[n][1] for n in order]
    for one in "abc":
        kept = [rows[n] for n in order if rows[n][0] == one]
        if any(timestamp is None or delay is not None for _, timestamp, delay in kept):
            assert kept == [row for row in rows if row[0] == one]
