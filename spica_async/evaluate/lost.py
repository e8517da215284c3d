"""Which of the requests that were sent are nowhere any more.

Pure: no clock, no I/O. A request is with the bus or with a worker until its result comes. One that
is in neither place for a while was lost: with a deleted queue, or with the worker that took it.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

_MAX_PATIENCE = 32
"""In terms of the first."""


@dataclass(slots=True)
class _Sent:
    """One request in flight; the numbers are its places among all that was sent."""

    first_number: int
    number: int
    sent_at: float
    patience_seconds: float
    missing_since: float | None = None
    dropped: bool = False


class LostRequests:
    """Watches over requests in flight.

    Args:
        patience_seconds: how long one may be missing. Each time that it is sent again, its own
            patience doubles, a few times: what we take for a loss may be a slow fleet.
    """

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._sent: dict[str, _Sent] = {}
        self._held: set[str] = set()
        self._count = 0
        self._last_taken = 0

    def sent(self, evaluation_id: str, now: float) -> None:
        """It is with the bus, for the first time or again."""
        self._count += 1
        first, patience = self._count, self._patience_seconds
        before = self._sent.get(evaluation_id)
        if before is not None:
            first = before.first_number
            self._held.discard(evaluation_id)
            patience = min(2 * before.patience_seconds, _MAX_PATIENCE * self._patience_seconds)
        self._sent[evaluation_id] = _Sent(first, self._count, now, patience)

    def ended(self, evaluation_id: str) -> None:
        """Nobody waits for it any more; without effect if it was never sent."""
        self._held.discard(evaluation_id)
        sent = self._sent.pop(evaluation_id, None)
        if sent is not None:
            self._last_taken = max(self._last_taken, sent.first_number)

    def dropped(self, evaluation_id: str) -> None:
        """The bus has dropped it; without effect if it is not in flight."""
        sent = self._sent.get(evaluation_id)
        if sent is not None:
            sent.dropped = True

    def look_anew(self) -> None:
        """Forget what seemed to be missing: for a while nobody could be heard."""
        for sent in self._sent.values():
            sent.missing_since = None

    def held(self, evaluation_ids: AbstractSet[str]) -> None:
        """A worker has said that it holds these; it may have been quicker than their sender."""
        self._held |= evaluation_ids

    def seen(self, held: AbstractSet[str]) -> None:
        """Workers hold these; what is not in flight has no effect."""
        for name in held & self._sent.keys():
            sent = self._sent[name]
            sent.dropped, sent.missing_since = False, None
            self._held.add(name)
            self._last_taken = max(self._last_taken, sent.first_number)

    def queue_deleted(self) -> list[str]:
        """What to send again at once, since it went with the queue that it waited in.

        What a worker has had may be with it still, even if that is not heard of at the moment. It
        is looked for from now on like all else; given back to the queue, it would be gone.
        """
        waited = [
            name for name, sent in self._sent.items() if sent.dropped or name not in self._held
        ]
        self._held.clear()
        self.look_anew()
        return waited

    def due(self, *, held: AbstractSet[str], queued: int, now: float) -> list[str]:
        """What to send again.

        Args:
            held: the evaluations that workers hold.
            queued: how many requests wait in the queue, whosever they are.
            now: seconds, by any clock that only goes on.
        """
        self.seen(held)
        return [
            name
            for name, sent in self._sent.items()
            if name not in held and self._is_due(name, sent, queued, now)
        ]

    def _is_due(self, name: str, sent: _Sent, queued: int, now: float) -> bool:
        if sent.dropped:
            # For certain; patience then only keeps one attempt and the next apart.
            return now - sent.sent_at >= sent.patience_seconds
        # A queue hands out in order, and what was given back first of all. So it may wait there
        # unless one that was sent later is out already, and nobody ever had this one.
        if queued and (name in self._held or sent.number > self._last_taken):
            sent.missing_since = None
            return False
        if sent.missing_since is None:
            sent.missing_since = now
        return now - sent.missing_since >= sent.patience_seconds
