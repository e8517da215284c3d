"""What the replay's loader reads of a trace, and what it makes of it."""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest
from support.engine_samples import KV_ROUTER, agg, disagg
from support.native_names import names_in

from schemas.messages import Sample
from spica_async.engine import evaluation, runtime
from spica_async.traces.check import check_trace, normal_copy, read_requests
from spica_async.traces.rows import ALIASES, INERT, READ

ROW: Mapping[str, Any] = {
    "timestamp": 0,
    "input_length": 1000,
    "output_length": 100,
    "hash_ids": [1, 2],
}
Replay: TypeAlias = Callable[..., list["Replayed"]]


class Replayed(NamedTuple):
    """One request of a replay; times in milliseconds."""

    session_id: str | None
    turn: int | None
    arrival_ms: float
    end_ms: float


@pytest.fixture
def replay(tmp_path: Path) -> Replay:
    def run(rows: Iterable[Any], sample: Sample | None = None, **load: Any) -> list[Replayed]:
        path = tmp_path / "replayed.jsonl"
        path.write_text("".join(f"{_text(row)}\n" for row in rows))
        arguments = _arguments(json.dumps(sample or agg()))
        found = runtime.load("dynamo.replay.api").run_trace_replay(
            path,
            trace_format="mooncake",
            trace_block_size=512,
            **{**arguments, "capture_per_request": True},
            **load,
        )
        requests = sorted(found.per_request, key=lambda one: one["arrival_time_ms"])
        return [
            Replayed(
                one["session_id"],
                one["turn_index"],
                one["arrival_time_ms"],
                one["terminal_time_ms"],
            )
            for one in requests
        ]

    return run


@functools.cache
def _arguments(sample: str) -> Mapping[str, Any]:
    return evaluation.replay_arguments(json.loads(sample), None)


def _text(row: Any) -> str:
    return row if isinstance(row, str) else json.dumps({**ROW, **row})


def _turn(session_id: str, at: float | None = None, **fields: Any) -> str:
    row = {**ROW, "session_id": session_id, **fields, "timestamp": at}
    return json.dumps({name: value for name, value in row.items() if value is not None})


def _parses(replay: Replay, fields: str) -> bool:
    """Whether a row with these fields can be read; it then fails for what it lacks."""
    with pytest.raises(Exception, match=r"failed to parse|is missing") as caught:
        replay(["{" + fields + "}"])
    return "is missing" in str(caught.value)


def test_every_field_that_the_loader_reads_is_known_to_us(replay: Replay) -> None:
    spec = importlib.util.find_spec("dynamo._core")
    assert spec is not None
    assert spec.origin is not None
    names = sorted(names_in(Path(spec.origin)))
    assert len(names) > 1000

    def read(among: Sequence[str]) -> set[str]:
        # A field that is read may stand once, and any other as often as it likes.
        if _parses(replay, ",".join(f'"{name}": null, "{name}": null' for name in among)):
            return set()
        if len(among) == 1:
            return set(among)
        half = len(among) // 2
        return read(among[:half]) | read(among[half:])

    known = READ | INERT | ALIASES.keys()
    assert read([name for name in names if name not in known]) == set()
    assert {name for name in known if read([name])} == known
    # What a loader of another format reads is among the names, so these are not too few.
    assert {"tool_wait_ms", "wait_for", "turn_index"} <= set(names)


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_other_names(replay: Replay, alias: str, name: str) -> None:
    values = {**ROW, "delay": 0}
    assert not _parses(replay, f'"{alias}": null, "{name}": null')
    value = values.pop(name)
    assert len(replay([json.dumps({**values, alias: value})])) == 1


@pytest.mark.parametrize(
    "field",
    [
        '"session_id": 7',
        '"delay": "7"',
        '"timestamp": "7"',
        '"priority": 0.5',
        '"strict_priority": -1',
        '"policy_class": 7',
        '"request_id": 7',
        '"output_token_ids": [-1]',
        '"session_id": "\\ud800"',
    ],
)
def test_what_the_loader_cannot_read(replay: Replay, field: str) -> None:
    assert not _parses(replay, field)


@pytest.mark.parametrize(
    "sample",
    [
        agg(),
        # The same again where blocks and their routing count, too: seconds each.
        pytest.param(agg(**KV_ROUTER), marks=pytest.mark.slow),
        pytest.param(disagg(**KV_ROUTER), marks=pytest.mark.slow),
    ],
    ids=["round_robin", "kv", "disagg"],
)
def test_inert_fields_change_nothing(replay: Replay, sample: Sample) -> None:
    # One rank, which is kept busy: whoever could be preferred would show.
    counts = {name: 1 for name in sample if name == "replicas" or name.endswith("_replicas")}
    narrow = {"agg_max_num_seqs": 4, "prefill_max_num_seqs": 1, "decode_max_num_seqs": 4}
    sample = {**sample, **counts, **{k: v for k, v in narrow.items() if k in sample}}
    rows = [
        {"timestamp": 2 * i, "output_length": 10 + i % 7, "hash_ids": [2 * i, 2 * i + 1]}
        for i in range(60)
    ]
    inert: Mapping[str, Callable[[int], Any]] = {
        "request_id": str,
        "priority": lambda i: i,
        "strict_priority": lambda i: i,
        "policy_class": lambda i: "gold" if i % 2 else "iron",
        "output_token_ids": lambda i: [7] * (10 + i % 7),
    }
    assert inert.keys() == INERT
    # All at once: of those that meant something, the one that outranks the others would show.
    full = [row | {name: value(i) for name, value in inert.items()} for i, row in enumerate(rows)]
    assert replay(full, sample) == replay(rows, sample)


def test_a_later_turn_comes_its_delay_after_the_answer_before_it(replay: Replay) -> None:
    a, b, *later = replay(
        [
            _turn("a", 5000),
            _turn("b", 5500),
            _turn("a", 6000),
            _turn("a", delay=300),
            _turn("a", 60_000, delay=7),
            _turn("a", 60_500),
            _turn("b"),
        ]
    )
    # The clock starts at the first arrival.
    assert (a.arrival_ms, b.arrival_ms) == (0, 500)
    ends = {"a": a.end_ms, "b": b.end_ms}
    delays: dict[str, list[float]] = {"a": [], "b": []}
    for one in later:
        assert one.session_id is not None
        delays[one.session_id].append(one.arrival_ms - ends[one.session_id])
        ends[one.session_id] = one.end_ms
    assert delays["a"] == pytest.approx([1000, 300, 7, 500])
    assert delays["b"] == pytest.approx([0])


def test_a_delay_is_sped_up_in_an_open_loop_alone(replay: Replay) -> None:
    rows = [_turn("a", 0), _turn("a", delay=3000)]
    first, second = replay(rows, arrival_speedup_ratio=2.0)
    assert second.arrival_ms - first.end_ms == pytest.approx(1500)
    first, second = replay(rows, arrival_speedup_ratio=2.0, replay_concurrency=1)
    assert second.arrival_ms - first.end_ms == pytest.approx(3000)


def test_a_closed_loop_counts_sessions(replay: Replay) -> None:
    found = replay([_turn("a", 0), _turn("b", 0), _turn("a", 9000)], replay_concurrency=1)
    assert [one.session_id for one in found] == ["a", "a", "b"]
    assert found[2].arrival_ms == pytest.approx(found[1].end_ms)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([_turn("a", 0, delay=7)], "sets delay on the first turn"),
        ([_turn("a", 7), _turn("a", 0)], "invalid delay"),
        ([_turn("a")], "first_arrival_timestamp_ms"),
    ],
)
def test_sessions_that_the_loader_refuses(replay: Replay, rows: list[str], problem: str) -> None:
    with pytest.raises(Exception, match=problem):
        replay(rows)


def test_a_row_without_a_session_is_one_of_a_name_that_another_may_have(replay: Replay) -> None:
    found = replay([{}, _turn("request_1", 100)])
    assert [(one.session_id, one.turn) for one in found] == [("request_1", 0), ("request_1", 1)]


def test_the_normal_copy_means_what_its_source_says(replay: Replay, tmp_path: Path) -> None:
    rows = [
        {"created_time": 4000, "input_tokens": 1000, "output_tokens": 9, "hash_ids": [1, 2]},
        {**ROW, "timestamp": 4500, "session_id": "a", "priority": 7, "prompt": "Hello"},
        {**ROW, "timestamp": 4600, "session_id": None},
        {**ROW, "timestamp": 5500, "session_id": "a"},
        {"session_id": "a", "delay_ms": 40, **{k: ROW[k] for k in ROW if k != "timestamp"}},
    ]
    texts = [json.dumps(row) for row in rows]
    source = tmp_path / "source.jsonl"
    source.write_text("\n".join(texts))
    copy = normal_copy(source, tmp_path / "copies")
    facts = check_trace(copy)
    assert facts.is_normal
    assert (facts.sessions, facts.later_turns, facts.requests) == (1, 2, 5)
    replayed = replay(copy.read_text().splitlines())
    assert replayed == replay(texts)
    # And what is forecast is what is replayed, but for the time that answers take.
    turns = [one for one in replayed if one.session_id == "a"]
    early = [request.timestamp_ms - 4000 for request in read_requests(copy)]
    took = 0.0
    for turn, expected in zip(turns, [early[1], *early[3:]], strict=True):
        assert turn.arrival_ms == pytest.approx(expected + took)
        took += turn.end_ms - turn.arrival_ms
