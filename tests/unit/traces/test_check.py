"""The line-by-line check of traces and the sorted copy."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from spica_async.traces import check, text
from spica_async.traces.check import TraceError, check_trace, normal_copy, read_requests

TRACES = Path(os.environ.get("SPICA_TRACES", Path(__file__).parents[4] / "shared" / "traces"))


def line(**fields: Any) -> str:
    request = {"timestamp": 0, "input_length": 1024, "output_length": 8, "hash_ids": [1, 2]}
    return json.dumps(request | fields)


def without(name: str) -> str:
    return json.dumps({key: value for key, value in json.loads(line()).items() if key != name})


def written(folder: Path, *lines: str | bytes) -> Path:
    path = folder / "trace.jsonl"
    path.write_bytes(
        b"".join((text.encode() if isinstance(text, str) else text) + b"\n" for text in lines)
    )
    return path


def test_facts_of_a_trace(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        line(timestamp=500),
        line(timestamp=2000.5, input_length=1, output_length=1, hash_ids=[0]),
        line(timestamp=2000.5, input_length=1025, output_length=3, hash_ids=[1, 2, 2**64 - 1]),
    )

    facts = check_trace(path)

    content = path.read_bytes()
    assert facts == check.TraceFacts(
        path=path,
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
        requests=3,
        input_tokens=2050,
        output_tokens=12,
        longest_request=1032,
        first_timestamp_ms=500.0,
        last_timestamp_ms=2000.5,
        is_sorted=True,
    )
    assert facts.duration_ms == 1500.5
    assert facts.total_tokens == 2062


def test_lengths_reach_to_64_bits(tmp_path: Path) -> None:
    assert check_trace(written(tmp_path, line(output_length=2**64 - 1))).output_tokens == 2**64 - 1


def test_first_and_last_are_found_in_an_unsorted_trace(tmp_path: Path) -> None:
    path = written(tmp_path, line(timestamp=20), line(timestamp=5), line(timestamp=10))

    facts = check_trace(path)

    assert not facts.is_sorted
    assert (facts.first_timestamp_ms, facts.last_timestamp_ms) == (5.0, 20.0)


def test_what_the_replay_accepts_is_accepted(tmp_path: Path) -> None:
    # Blank lines, carriage returns, fields it does not know, no end of the last line.
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "\n".join([line(), "", "  \t", line(kind="chat") + "\r", line(timestamp=-0.0)]),
        newline="",
    )

    facts = check_trace(path)

    assert facts.requests == 3
    assert facts.size_bytes == path.stat().st_size
    assert len(list(read_requests(path))) == 3


BAD_LINES = {
    "text": ("hello", "not JSON"),
    "cut": (line()[:-1], "not JSON"),
    "two objects": (line() + line(), "not JSON"),
    "byte order mark": (b"\xef\xbb\xbf" + line().encode(), "not JSON"),
    "not UTF-8": (b'{"timestamp": "\xff"}', "not UTF-8 at byte 16"),
    "nested beyond reason": ("[" * 100_000, "not JSON"),
    "number of 5,000 digits": (line().replace("1024", "1" * 5_000), "not JSON"),
    "list": ("[1, 2]", "allowed: one JSON object a line"),
    "null": ("null", "allowed: one JSON object a line"),
    "repeated field": (line()[:-1] + ', "timestamp": 1}', '"timestamp" stands twice'),
    "no timestamp": (without("timestamp"), "timestamp is missing"),
    "no input_length": (without("input_length"), "input_length is missing"),
    "no output_length": (without("output_length"), "output_length is missing"),
    "no hash_ids": (without("hash_ids"), "hash_ids is missing"),
    "null timestamp": (line(timestamp=None), "timestamp is null; allowed: a finite number"),
    "bool timestamp": (line(timestamp=True), "timestamp is true; allowed: a finite number"),
    "text timestamp": (line(timestamp="5"), 'timestamp is "5"; allowed: a finite number'),
    "NaN timestamp": (line(timestamp=float("nan")), "NaN is no number"),
    "infinite timestamp": (line(timestamp=float("inf")), "Infinity is no number"),
    "overflowing timestamp": (line(timestamp=7).replace(" 7", " 1e400"), "allowed: a finite"),
    "overflowing whole timestamp": (line(timestamp=10**400), "allowed: a finite number"),
    "negative timestamp": (line(timestamp=-0.001), "timestamp is -0.001; allowed"),
    "input_length 0": (line(input_length=0, hash_ids=[]), "input_length is 0; allowed"),
    "float input_length": (line(input_length=1024.0), "input_length is 1024.0; allowed"),
    "bool input_length": (line(input_length=True, hash_ids=[1]), "input_length is true"),
    "output_length 0": (line(output_length=0), "output_length is 0; allowed: an integer of 1"),
    "negative output_length": (line(output_length=-1), "output_length is -1"),
    "output_length beyond 64 bits": (line(output_length=2**64), "output_length is 1844"),
    "text hash_ids": (line(hash_ids="12"), 'hash_ids is "12"; allowed: a list'),
    "null hash_ids": (line(hash_ids=None), "hash_ids is null; allowed: a list"),
    "negative hash id": (line(hash_ids=[1, -1]), "hash_ids holds -1; allowed"),
    "bool hash id": (line(hash_ids=[1, True]), "hash_ids holds true; allowed"),
    "float hash id": (line(hash_ids=[1.0, 2]), "hash_ids holds 1.0; allowed"),
    "hash id beyond 64 bits": (line(hash_ids=[1, 2**64]), "hash_ids holds 18446744073709551616"),
    "one hash id too few": (line(input_length=1025), "has 2 ids; allowed for an input_length"),
    "one hash id too many": (line(input_length=512), "an input_length of 512: 1, one per 512"),
}


@pytest.mark.parametrize(("bad", "problem"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_named(tmp_path: Path, bad: str | bytes, problem: str) -> None:
    path = written(tmp_path, line(), "", bad, "also bad")

    with pytest.raises(TraceError) as caught:
        check_trace(path)

    assert caught.value.line == 3
    assert str(caught.value).startswith(f"{path}, line 3: ")
    assert problem in str(caught.value)
    assert len(caught.value.problem) < 200
    with pytest.raises(TraceError, match="line 3"):
        list(read_requests(path))
    with pytest.raises(TraceError, match="line 3"):
        normal_copy(path, tmp_path / "copies")
    assert not list((tmp_path / "copies").iterdir())


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_a_trace_without_requests_is_an_error(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(content)

    with pytest.raises(TraceError, match="no requests in it") as caught:
        check_trace(path)

    assert caught.value.line is None


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"absent\.jsonl: cannot be read: No such file"):
        check_trace(tmp_path / "absent.jsonl")
    with pytest.raises(TraceError, match="not a regular file"):
        check_trace(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match="not a regular file"):
        check_trace(tmp_path / "pipe")


def test_a_line_takes_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, line(), line())
    length = len(line()) + 1

    monkeypatch.setattr(text, "_MAX_LINE_BYTES", length)
    assert check_trace(path).requests == 2

    monkeypatch.setattr(text, "_MAX_LINE_BYTES", length - 1)
    with pytest.raises(TraceError, match=f"line 1: too long; allowed: {length - 1} bytes"):
        check_trace(path)


def test_another_block_size(tmp_path: Path) -> None:
    path = written(tmp_path, line(input_length=32, hash_ids=[1, 2]))

    assert check_trace(path, block_size=16).input_tokens == 32
    with pytest.raises(TraceError, match="one per 512 tokens"):
        check_trace(path)


def test_the_copy_is_in_a_stable_order_and_named_by_its_digest(tmp_path: Path) -> None:
    unsorted = [line(timestamp=t, output_length=n + 1) for n, t in enumerate([7, 5, 7, 0, 5])]
    path = tmp_path / "trace.jsonl"
    # The last line has no end, and moves.
    path.write_text(unsorted[0] + "\r\n\n" + "\n".join(unsorted[1:]), newline="")
    source = check_trace(path)

    copy = normal_copy(path, tmp_path / "deep" / "copies")

    facts = check_trace(copy)
    assert copy == tmp_path / "deep" / "copies" / f"{facts.sha256}.jsonl"
    assert facts.sha256 == hashlib.sha256(copy.read_bytes()).hexdigest()
    assert copy.read_text() == "".join(unsorted[n] + "\n" for n in (3, 1, 4, 0, 2))
    assert list(copy.parent.iterdir()) == [copy]
    assert facts.is_sorted
    assert (facts.requests, facts.total_tokens) == (source.requests, source.total_tokens)


def test_a_copy_that_is_there_is_left_alone_unless_it_is_damaged(tmp_path: Path) -> None:
    path = written(tmp_path, line(timestamp=7), line(timestamp=5))
    copy = normal_copy(path, tmp_path / "copies")
    content, status = copy.read_bytes(), copy.stat()

    assert normal_copy(path, tmp_path / "copies") == copy
    again = copy.stat()
    assert (again.st_ino, again.st_mtime_ns) == (status.st_ino, status.st_mtime_ns)

    for damaged in (content[:-7], content[:-7] + bytes(7)):
        copy.write_bytes(damaged)
        assert normal_copy(path, tmp_path / "copies") == copy
        assert copy.read_bytes() == content


@pytest.mark.parametrize(
    ("name", "requests"), [("conversation_trace.jsonl", 12031), ("synthetic_trace.jsonl", 3993)]
)
def test_the_published_traces_pass(tmp_path: Path, name: str, requests: int) -> None:
    path = TRACES / name
    if not path.exists():
        pytest.skip(f"no {path}; set SPICA_TRACES to a folder with Mooncake's traces")

    facts = check_trace(path)

    assert facts.requests == requests
    assert facts.is_sorted
    assert normal_copy(path, tmp_path).read_bytes() == path.read_bytes()
