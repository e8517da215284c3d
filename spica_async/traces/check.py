"""Checks a trace line by line, so that a bad line is named before anything starts."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from spica_async.traces.rows import RowError, TraceRow, parse_row
from spica_async.traces.sessions import Sessions, Turn
from spica_async.traces.text import TraceError, TraceText, open_trace

BLOCK_SIZE: Final = 512
"""Input tokens per hash id in the published Mooncake traces."""

MOST_DAYS: Final = 366
"""From the first request of a replay to its last. What is longer has a slip in its times."""

_MS_PER_DAY: Final = 24 * 3600 * 1000
# Names of fields are shown, not kept without bound.
_MOST_OTHERS: Final = 8


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """What a checked trace holds; times in milliseconds, lengths in tokens.

    The two timestamps are the least and the greatest, in whatever order the lines stand; a later
    turn of a session counts from its first, as if answers took no time. The longest request is the
    one with the most input and output tokens together.

    Attributes:
        sha256: of the lines, which is that of the file where `is_normal`.
        size_bytes: likewise.
        sessions: those of more than one turn.
        later_turns: the turns of sessions but the first of each.
        delays_ms: the delays of all of these together.
        is_sorted: whether the lines stand in the order of their timestamps.
        is_normal: whether the file is plain text of lines that have only what a replay reads.
        others: a few of the fields that no replay of ours reads.
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
    is_normal: bool = True
    sessions: int = 0
    later_turns: int = 0
    delays_ms: float = 0.0
    others: tuple[str, ...] = ()

    @property
    def duration_ms(self) -> float:
        """From the first arrival to the last."""
        return self.last_timestamp_ms - self.first_timestamp_ms

    @property
    def total_tokens(self) -> int:
        """Input plus output tokens of all requests."""
        return self.input_tokens + self.output_tokens


class TraceRequest(NamedTuple):
    """One request without its hash ids; lengths in tokens.

    Attributes:
        timestamp_ms: when it arrives, if each answer before it in its session takes no time.
        input_length: input tokens.
        output_length: output tokens.
    """

    timestamp_ms: float
    input_length: int
    output_length: int


def check_trace(path: Path, *, block_size: int = BLOCK_SIZE) -> TraceFacts:
    """Read a whole trace, one line in memory at a time, and sum it up.

    Raises:
        TraceError: at the first line that the replay could not use, or for a file without
            requests, of a span that none has, or that cannot be read.
    """
    digest = hashlib.sha256()
    size = requests = input_tokens = output_tokens = longest = later_turns = sessions = 0
    first, last, previous, last_line = math.inf, -math.inf, -math.inf, 0
    delays = 0.0
    is_sorted = is_normal = True
    others: set[str] = set()
    with open_trace(path) as text:
        for number, line, read in _rows(text, block_size):
            digest.update(line)
            size += len(line)
            if read is None:
                continue
            row, turn = read
            requests += 1
            input_tokens += row.input_length
            output_tokens += row.output_length
            longest = max(longest, row.input_length + row.output_length)
            later_turns += turn.number > 0
            sessions += turn.number == 1
            delays += turn.delay_ms
            is_sorted = is_sorted and turn.order_ms >= previous
            is_normal = is_normal and row.is_normal
            if len(others) < _MOST_OTHERS:
                others |= row.others
            previous = turn.order_ms
            first = min(first, turn.arrival_ms)
            if turn.arrival_ms > last:
                last, last_line = turn.arrival_ms, number
        is_normal = is_normal and text.is_plain
    if not requests:
        raise TraceError(path, None, "no requests in it; allowed: one JSON object a line")
    _check_span(path, last_line, last - first)
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
        is_normal=is_normal,
        sessions=sessions,
        later_turns=later_turns,
        delays_ms=delays,
        others=tuple(sorted(others)[:_MOST_OTHERS]),
    )


def _check_span(path: Path, last_line: int, span_ms: float) -> None:
    days = span_ms / _MS_PER_DAY
    if days > MOST_DAYS:
        raise TraceError(
            path,
            last_line,
            f"arrives {days:,.0f} days after the first request; allowed: {MOST_DAYS} days, with"
            " every timestamp and delay in ms and from one clock",
        )


def read_requests(path: Path, *, block_size: int = BLOCK_SIZE) -> Iterator[TraceRequest]:
    """Yield the requests in the order of the file, each checked as by `check_trace`.

    Raises:
        TraceError: as `check_trace`, save that a file without requests yields none.
    """
    with open_trace(path) as text:
        for _, _, read in _rows(text, block_size):
            if read is not None:
                row, turn = read
                yield TraceRequest(turn.arrival_ms, row.input_length, row.output_length)


def normal_copy(path: Path, folder: Path, *, block_size: int = BLOCK_SIZE) -> Path:
    """Write the requests into `folder` as plain lines of what a replay reads.

    They are ordered by arrival, ties as they stood, and the turns of a session stay in their order.
    A line that is normal already stays as it is. The copy is named by its own SHA-256, so sources
    of one name do not meet; it appears whole or not at all, and one that is whole is left alone,
    for others may be serving it. Memory holds an index of the lines, not the lines.

    Returns:
        The path of the copy, `<folder>/<sha256 of the copy>.jsonl`.

    Raises:
        TraceError: as `check_trace`.
        OSError: if the copy cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        plain, ordered = Path(scratch) / "plain", Path(scratch) / "ordered"
        index = _write_lines(path, plain, block_size)
        digest = hashlib.sha256()
        with plain.open("rb") as source, ordered.open("wb") as copy:
            for _, start, length in sorted(index):  # Offsets ascend, which makes it stable.
                source.seek(start)
                line = source.read(length)
                digest.update(line)
                copy.write(line)
        target = folder / f"{digest.hexdigest()}.jsonl"
        if not (target.is_file() and _sha256(target) == digest.hexdigest()):
            ordered.replace(target)
    return target


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_lines(path: Path, target: Path, block_size: int) -> list[tuple[float, int, int]]:
    """Write the normal lines in the order of the file; their order, offsets and lengths."""
    index: list[tuple[float, int, int]] = []
    offset = 0
    with open_trace(path) as text, target.open("wb") as file:
        for _, line, read in _rows(text, block_size):
            if read is None:
                continue
            row, turn = read
            kept = line.rstrip(b"\r\n") if row.is_normal else row.normal_line().encode()
            file.write(kept + b"\n")
            index.append((turn.order_ms, offset, len(kept) + 1))
            offset += len(kept) + 1
    return index


def _rows(
    text: TraceText, block_size: int
) -> Iterator[tuple[int, bytes, tuple[TraceRow, Turn] | None]]:
    """Each line with its number from 1 and, unless it is blank, its row and its turn."""
    sessions = Sessions()
    for number, line in text.lines():
        try:
            row = parse_row(line, block_size)
            turn = None if row is None else sessions.place(row)
        except RowError as problem:
            raise TraceError(text.path, number, str(problem)) from problem.__cause__
        yield number, line, None if row is None or turn is None else (row, turn)


__all__ = [
    "BLOCK_SIZE",
    "MOST_DAYS",
    "TraceError",
    "TraceFacts",
    "TraceRequest",
    "check_trace",
    "normal_copy",
    "read_requests",
]
