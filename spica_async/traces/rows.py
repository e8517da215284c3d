"""One line of a trace: which fields the replay reads, and what each may be.

The replay's loader reads the fields of `READ`, four of them also under the names of `ALIASES`, and
refuses a line in which one has a value of another type. It parses the fields of `INERT` as well,
which change nothing in the replays that we set up. The engine's contract tests probe all of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Never

from spica_async.errors import printable

ALIASES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "created_time": "timestamp",
        "input_tokens": "input_length",
        "output_tokens": "output_length",
        "delay_ms": "delay",
    }
)
READ: Final = frozenset(
    {"timestamp", "input_length", "output_length", "hash_ids", "session_id", "delay"}
)
INERT: Final = frozenset(
    {"request_id", "priority", "strict_priority", "policy_class", "output_token_ids"}
)

# The replay parses lengths and ids as unsigned 64-bit integers.
_MAX_INTEGER: Final = 2**64 - 1
# Three thousand years. A Unix time is below it in milliseconds alone.
_MAX_MS: Final = 1e14
# A line without a session is to the replay a session of this name and the line's number.
_OWN_SESSION: Final = "request_"
_SHOWN_CHARACTERS: Final = 40


class RowError(Exception):
    """What is wrong with a line whose place the caller knows."""


class TraceRow(NamedTuple):
    """What the replay reads of a line.

    Attributes:
        timestamp_ms: when it arrives; None where only its session says so.
        input_length: tokens.
        output_length: tokens.
        session_id: the session whose next turn it is; None: one of its own.
        delay_ms: from the end of the session's turn before it; None: by the timestamps.
        fields: all that the line has, under the names of a normal one.
        is_normal: whether the line has the fields of a normal one alone, and none that is null.
    """

    timestamp_ms: float | None
    input_length: int
    output_length: int
    session_id: str | None
    delay_ms: float | None
    fields: dict[str, Any]
    is_normal: bool

    @property
    def others(self) -> frozenset[str]:
        """Names of the fields that are not read."""
        return frozenset(self.fields.keys() - READ)

    def normal_line(self) -> str:
        """The line with what is read of it alone."""
        kept = {k: v for k, v in self.fields.items() if k in READ and v is not None}
        if (self.session_id or "").startswith(_OWN_SESSION):
            kept["session_id"] = f"session {self.session_id}"
        return json.dumps(kept)


def parse_row(line: bytes, block_size: int) -> TraceRow | None:
    """The row on a line; None for a blank line, which replay and planner skip as well.

    Raises:
        RowError: if the replay could not read it, or would read something else than is meant.
    """
    return _row(_record(line), block_size) if line.strip() else None


def shown(value: Any) -> str:
    """A value of a line, for a message."""
    return printable(json.dumps(value), _SHOWN_CHARACTERS)


def _record(line: bytes) -> dict[str, Any]:
    try:
        record = _DECODER.decode(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RowError(f"not UTF-8 at byte {error.start + 1} of the line") from error
    except json.JSONDecodeError as error:
        raise RowError(f"not JSON: {error.msg} at character {error.pos + 1}") from error
    # Objects nested beyond reason, and integers of thousands of digits.
    except (RecursionError, ValueError) as error:
        raise RowError(f"not JSON that can be read: {error}") from error
    if not isinstance(record, dict):
        raise RowError(f"{shown(record)} is not an object; allowed: one JSON object a line")
    return record


def _row(record: dict[str, Any], block_size: int) -> TraceRow:
    fields = record if record.keys().isdisjoint(ALIASES) else _renamed(record)
    session_id = _session(fields.get("session_id"))
    delay = fields.get("delay")
    delay_ms = None if delay is None else _milliseconds("delay", delay)
    timestamp_ms = None
    # A later turn may leave it out.
    if session_id is None or "timestamp" in fields:
        timestamp_ms = _milliseconds("timestamp", _field(fields, "timestamp"))
    input_length = _length(fields, "input_length")
    output_length = _length(fields, "output_length")
    _check_hash_ids(_field(fields, "hash_ids"), input_length, block_size)
    is_normal = (
        fields is record
        and fields.keys() <= READ
        and None not in fields.values()
        and not (session_id or "").startswith(_OWN_SESSION)
    )
    return TraceRow(
        timestamp_ms, input_length, output_length, session_id, delay_ms, fields, is_normal
    )


def _renamed(record: dict[str, Any]) -> dict[str, Any]:
    for alias, name in ALIASES.items():
        if alias in record and name in record:
            raise RowError(f"{alias} stands beside {name}, which it is another name of")
    return {ALIASES.get(name, name): value for name, value in record.items()}


def _check_hash_ids(ids: Any, input_length: int, block_size: int) -> None:
    if not isinstance(ids, list):
        raise RowError(f"hash_ids is {shown(ids)}; allowed: a list of integers")
    for item in ids:
        if type(item) is not int or not 0 <= item <= _MAX_INTEGER:
            raise RowError(f"hash_ids holds {shown(item)}; allowed: integers from 0 to 2^64 - 1")
    # The replay refuses fewer ids and silently drops any more.
    blocks = -(-input_length // block_size)
    if len(ids) != blocks:
        raise RowError(
            f"hash_ids has {len(ids)} ids; allowed for an input_length of {input_length}: "
            f"{blocks}, one per {block_size} tokens"
        )


def _field(fields: dict[str, Any], name: str) -> Any:
    if name not in fields:
        raise RowError(f"{name} is missing")
    return fields[name]


def _session(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and value:
        try:
            value.encode()
        except UnicodeEncodeError:
            pass
        else:
            return value
    raise RowError(f"session_id is {shown(value)}; allowed: a text that is not empty")


def _milliseconds(name: str, value: Any) -> float:
    # Exact types here and below, since a bool is an int to isinstance.
    if type(value) in (int, float) and 0 <= value <= _MAX_MS:
        return float(value)
    raise RowError(f"{name} is {shown(value)}; allowed: a finite number of ms, 0 to 10^14")


def _length(fields: dict[str, Any], name: str) -> int:
    value = _field(fields, name)
    if type(value) is int and 1 <= value <= _MAX_INTEGER:
        return value
    raise RowError(f"{name} is {shown(value)}; allowed: an integer of 1 or more")


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RowError(f"{shown(twice)} stands twice; allowed: each field once")
    return record


def _no_constant(name: str) -> Never:
    raise RowError(f"not JSON: {name} is no number; allowed: finite numbers")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique_fields, parse_constant=_no_constant)
