"""Follows a sweep of a daemon over connections that may be lost, up to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt

from schemas.lifecycle import SweepEvent, SweepFailed, SweepPaused
from spica_async.errors import SpicaError
from spica_async.service.client import DaemonClient, DaemonSilentError
from spica_async.service.port import UnreadableEvent

_ATTEMPTS: Final = 16
"""A minute, with the pauses between them."""
_MOVING: Final = frozenset({"queued", "running"})
_OVER: Final = frozenset({"failed", "cancelled", "interrupted"})
"""A stream goes on after some of these, for when somebody resumes the sweep."""


def follow(
    client: DaemonClient,
    sweep_id: str,
    on_trouble: Callable[[str], None],
    *,
    quiet_seconds: float = 10.0,
) -> Iterator[SweepEvent]:
    """All that has happened and happens to a sweep, each once, until it ends.

    To have failed or been interrupted is an end, too, unless it was resumed since; a pause is
    none. A connection that is lost is made anew, for a minute. Not every end has an event, so
    the sweep's state is asked for, too, when it is connected to and when nothing happens.

    Args:
        client: the client of the daemon.
        sweep_id: the name of the sweep.
        on_trouble: called with a line when the daemon stops answering, or an event is left out.
        quiet_seconds: how long the sweep may be silent before its state is asked for.

    Raises:
        SpicaError: as `DaemonClient`.
    """
    following = _Following(client, sweep_id, on_trouble, quiet_seconds)
    while (event := following.next()) is not None:
        yield event


@dataclass(slots=True)
class _Following:
    """A stream of events that outlives its connections; see `follow`."""

    client: DaemonClient
    sweep_id: str
    on_trouble: Callable[[str], None]
    quiet_seconds: float
    _quiet_since: float = 0.0
    _was_over: bool = False
    _last: int = 0
    _perhaps_over: bool = False
    _events: Iterator[SweepEvent | UnreadableEvent] | None = None

    def next(self) -> SweepEvent | None:
        """The next event; none: there are no more."""
        again = Retrying(
            retry=retry_if_exception_type(DaemonSilentError),
            wait=self.client.pauses,
            # Not by time: what is waited for may happen only after hours.
            stop=stop_after_attempt(_ATTEMPTS),
            before_sleep=self._report,
            reraise=True,
        )
        return again(self._try_next)

    def _try_next(self) -> SweepEvent | None:
        if self._perhaps_over:
            # An event may be of an earlier run; the state is written together with the last one.
            if self._is_over():
                return None
            self._perhaps_over = False
        if self._events is None:
            self._was_over = self._is_over()
            self._quiet_since = time.monotonic()
            self._events = self.client.events(
                self.sweep_id,
                after=self._last,
                is_enough=self._is_quiet_and_over,
            )
        try:
            for event in self._events:
                if isinstance(event, UnreadableEvent):
                    if event.number > self._last:
                        self._last = event.number
                        what = f"event {event.number} cannot be read by this version"
                        self.on_trouble(f"{what}, and is left out")
                elif event.sequence > self._last:
                    self._last = event.sequence
                    self._was_over = False
                    self._quiet_since = time.monotonic()
                    self._perhaps_over = isinstance(event.data, SweepFailed | SweepPaused)
                    return event
        except SpicaError:
            self._events = None
            raise
        self._events = None
        if self.client.sweep(self.sweep_id).state in _MOVING:
            # The daemon has ended the stream, not the sweep.
            raise DaemonSilentError(f"{self.client.url}: it sends no more of the sweep's events")
        return None

    def _is_over(self) -> bool:
        return self.client.sweep(self.sweep_id).state in _OVER

    def _is_quiet_and_over(self) -> bool:
        """Whether the sweep was over a while ago and still is, without an event in between.

        Asked once, it may have ended this very moment, with its last events still to come.
        """
        now = time.monotonic()
        if now - self._quiet_since < self.quiet_seconds:
            return False
        self._quiet_since = now
        before, self._was_over = self._was_over, self._is_over()
        return before and self._was_over

    def _report(self, state: RetryCallState) -> None:
        # Only once for each time that it is lost.
        if state.attempt_number == 1 and state.outcome is not None:
            self.on_trouble(f"{state.outcome.exception()}; trying again")
