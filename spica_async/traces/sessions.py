"""The turns of sessions: a later one comes its delay after the answer before it has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spica_async.traces.rows import RowError, TraceRow, shown


class Turn(NamedTuple):
    """Where a row stands in its session and in its trace.

    Attributes:
        number: from 0 in its session.
        delay_ms: from the answer before it in its session until it arrives.
        arrival_ms: when it arrives, if each answer before it in its session takes no time.
        order_ms: a file whose rows ascend in it is in order; in a session it is the order of turns.
    """

    number: int
    delay_ms: float
    arrival_ms: float
    order_ms: float


@dataclass(slots=True)
class _Session:
    turns: int
    arrival_ms: float
    timestamp_ms: float
    timed_by_delay: bool
    goes_back: bool = False


class Sessions:
    """Follows the sessions of a trace, row by row in the order of the file, as the replay does."""

    def __init__(self) -> None:
        self._known: dict[str, _Session] = {}

    def place(self, row: TraceRow) -> Turn:
        """Take the next row.

        Raises:
            RowError: if it cannot be the next turn of its session.
        """
        session = None if row.session_id is None else self._known.get(row.session_id)
        if session is None:
            return self._first(row)
        if row.timestamp_ms is None or row.delay_ms is not None:
            session.timed_by_delay = True
        before = session.timestamp_ms
        timestamp = before if row.timestamp_ms is None else row.timestamp_ms
        session.goes_back |= timestamp < before
        if session.goes_back and session.timed_by_delay:
            raise RowError(
                f"the turns of session {shown(row.session_id)} stand neither in the order of their "
                "timestamps, nor does each have one; allowed where a turn has a delay or no "
                "timestamp: turns in their order"
            )
        # As the replay counts: from the last timestamp that the session had.
        delay = row.delay_ms if row.delay_ms is not None else timestamp - before
        session.turns += 1
        session.arrival_ms += delay
        session.timestamp_ms = timestamp
        return Turn(session.turns - 1, delay, session.arrival_ms, timestamp)

    def _first(self, row: TraceRow) -> Turn:
        if row.timestamp_ms is None:
            raise RowError("timestamp is missing, on the first turn of its session")
        if row.delay_ms:
            raise RowError(
                f"delay is {shown(row.delay_ms)} on the first turn of its session, which has its "
                "timestamp; allowed: 0 or none"
            )
        if row.session_id is not None:
            self._known[row.session_id] = _Session(
                1, row.timestamp_ms, row.timestamp_ms, timed_by_delay=row.delay_ms is not None
            )
        return Turn(0, 0.0, row.timestamp_ms, row.timestamp_ms)
