"""Checks a trace line by line, so that a bad line is named before anything starts."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Never

BLOCK_SIZE: Final = 512
"""Input tokens per hash id in the published Mooncake traces."""

# The replay parses lengths and ids as unsigned 64-bit integers.
_MAX_INTEGER: Final = 2**64 - 1
# Bounds what one line may take of memory; a million ids, half a billion input tokens, fit in it.
_MAX_LINE_BYTES: Final = 16 * 1024 * 1024
_SHOWN_CHARACTERS: Final = 40


class TraceError(ValueError):
    """A trace that cannot be replayed: which file, which line (from 1, if it is one), and why."""

    def __init__(self, path: Path, line: int | None, problem: str) -> None:
        super().__init__(path, line, problem)
        self.path = path
        self.line = line
        self.problem = problem

    def __str__(self) -> str:
        where = str(self.path) if self.line is None else f"{self.path}, line {self.line}"
        return f"{where}: {self.problem}"


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """What a checked trace holds; times in milliseconds, lengths in tokens.

    The two timestamps are the least and the greatest, in whatever order the lines stand. The
    longest request is the one with the most input and output tokens together.
    """

    path: Path
    sha256: str
    size_bytes: int
    requests: int
    input_tokens: int
    output_tokens: int
    longest_request: int
    first_timestamp_ms: float
    last_timestamp_ms: float
    is_sorted: bool

    @property
    def duration_ms(self) -> float:
        """From the first arrival to the last."""
        return self.last_timestamp_ms - self.first_timestamp_ms

    @property
    def total_tokens(self) -> int:
        """Input plus output tokens of all requests."""
        return self.input_tokens + self.output_tokens


class TraceRequest(NamedTuple):
    """One request without its hash ids; time in milliseconds, lengths in tokens."""

    timestamp_ms: float
    input_length: int
    output_length: int


def check_trace(path: Path, *, block_size: int = BLOCK_SIZE) -> TraceFacts:
    """Read a whole trace, one line in memory at a time, and sum it up.

    Raises:
        TraceError: at the first line that the replay could not use, or for a file without
            requests or that cannot be read.
    """
    digest = hashlib.sha256()
    size = requests = input_tokens = output_tokens = longest = 0
    first, last, previous = math.inf, -math.inf, -math.inf
    is_sorted = True
    for number, line in _lines(path):
        digest.update(line)
        size += len(line)
        request = _parse(path, number, line, block_size)
        if request is None:
            continue
        requests += 1
        input_tokens += request.input_length
        output_tokens += request.output_length
        longest = max(longest, request.input_length + request.output_length)
        is_sorted = is_sorted and request.timestamp_ms >= previous
        previous = request.timestamp_ms
        first = min(first, previous)
        last = max(last, previous)
    if not requests:
        raise TraceError(path, None, "no requests in it; allowed: one JSON object a line")
    return TraceFacts(
        path=path,
        sha256=digest.hexdigest(),
        size_bytes=size,
        requests=requests,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        longest_request=longest,
        first_timestamp_ms=first,
        last_timestamp_ms=last,
        is_sorted=is_sorted,
    )


def read_requests(path: Path, *, block_size: int = BLOCK_SIZE) -> Iterator[TraceRequest]:
    """Yield the requests in the order of the file, each checked as by `check_trace`.

    Raises:
        TraceError: as `check_trace`, save that a file without requests yields none.
    """
    for number, line in _lines(path):
        request = _parse(path, number, line, block_size)
        if request is not None:
            yield request


def sorted_copy(path: Path, folder: Path, *, block_size: int = BLOCK_SIZE) -> Path:
    """Write the requests into `folder`, ordered by arrival, ties as they stood.

    The copy is named by the SHA-256 of what was read, so sources of one name do not meet, and it
    appears whole or not at all. Memory holds an index of the lines, not the lines.

    Returns:
        The path of the copy, `<folder>/<sha256 of the source>.jsonl`.

    Raises:
        TraceError: as `check_trace`.
        OSError: if the copy cannot be written.
    """
    digest = hashlib.sha256()
    index: list[tuple[float, int, int]] = []
    offset = 0
    for number, line in _lines(path):
        digest.update(line)
        request = _parse(path, number, line, block_size)
        if request is not None:
            index.append((request.timestamp_ms, offset, len(line)))
        offset += len(line)
    index.sort()  # Offsets ascend with the lines, which makes the order stable.
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{digest.hexdigest()}.jsonl"
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        draft = Path(scratch) / target.name
        with path.open("rb") as source, draft.open("wb") as copy:
            for _, start, length in index:
                source.seek(start)
                copy.write(source.read(length).rstrip(b"\r\n") + b"\n")
        Path(draft).replace(target)
    return target


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its number from 1; an end of line belongs to its line."""
    try:
        if path.exists() and not path.is_file():
            raise TraceError(path, None, "not a regular file; allowed: a JSONL file")
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > _MAX_LINE_BYTES:
                    raise TraceError(
                        path, number, f"too long; allowed: {_MAX_LINE_BYTES} bytes a line"
                    )
                yield number, line
    except OSError as error:
        raise TraceError(path, None, f"cannot be read: {error.strerror}") from error


def _parse(path: Path, number: int, line: bytes, block_size: int) -> TraceRequest | None:
    """The request on a line; None for a blank line, which replay and planner skip as well."""
    if not line.strip():
        return None
    try:
        return _request(_record(line), block_size)
    except _Problem as problem:
        raise TraceError(path, number, str(problem)) from problem.__cause__


class _Problem(Exception):  # noqa: N818 - never leaves this module; TraceError does.
    """What is wrong with a line whose place the caller knows."""


def _record(line: bytes) -> dict[str, Any]:
    try:
        record = _DECODER.decode(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _Problem(f"not UTF-8 at byte {error.start + 1} of the line") from error
    except json.JSONDecodeError as error:
        raise _Problem(f"not JSON: {error.msg} at character {error.pos + 1}") from error
    # Objects nested beyond reason, and integers of thousands of digits.
    except (RecursionError, ValueError) as error:
        raise _Problem(f"not JSON that can be read: {error}") from error
    if not isinstance(record, dict):
        raise _Problem(f"{_shown(record)} is not an object; allowed: one JSON object a line")
    return record


def _request(record: dict[str, Any], block_size: int) -> TraceRequest:
    """The checked fields. Other fields are left alone, as the replay leaves them."""
    timestamp = _timestamp(_field(record, "timestamp"))
    input_length = _length(record, "input_length")
    output_length = _length(record, "output_length")
    ids = _field(record, "hash_ids")
    if not isinstance(ids, list):
        raise _Problem(f"hash_ids is {_shown(ids)}; allowed: a list of integers")
    for item in ids:
        if type(item) is not int or not 0 <= item <= _MAX_INTEGER:
            raise _Problem(f"hash_ids holds {_shown(item)}; allowed: integers from 0 to 2^64 - 1")
    # The replay refuses fewer ids and silently drops any more.
    blocks = -(-input_length // block_size)
    if len(ids) != blocks:
        raise _Problem(
            f"hash_ids has {len(ids)} ids; allowed for an input_length of {input_length}: "
            f"{blocks}, one per {block_size} tokens"
        )
    return TraceRequest(timestamp, input_length, output_length)


def _field(record: dict[str, Any], name: str) -> Any:
    if name not in record:
        raise _Problem(f"{name} is missing")
    return record[name]


def _timestamp(value: Any) -> float:
    # Exact types here and below, since a bool is an int to isinstance.
    if type(value) in (int, float):
        try:
            timestamp = float(value)
        except OverflowError:
            timestamp = math.inf
        if math.isfinite(timestamp) and timestamp >= 0:
            return timestamp
    raise _Problem(f"timestamp is {_shown(value)}; allowed: a finite number of ms, 0 or more")


def _length(record: dict[str, Any], name: str) -> int:
    value = _field(record, name)
    if type(value) is int and 1 <= value <= _MAX_INTEGER:
        return value
    raise _Problem(f"{name} is {_shown(value)}; allowed: an integer of 1 or more")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Problem(f"{_shown(twice)} stands twice; allowed: each field once")
    return record


def _no_constant(name: str) -> Never:
    raise _Problem(f"not JSON: {name} is no number; allowed: finite numbers")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique_fields, parse_constant=_no_constant)
