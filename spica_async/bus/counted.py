"""Counts what came over a bus and should not have, or could not be sent over it."""

from __future__ import annotations

from collections import Counter, defaultdict

import structlog

_LONGEST = 300
"""Characters of what somebody else has sent us."""


class CountedWarnings:
    """Logs the first warning of each kind, and counts all: one odd message may be one of thousands.

    Args:
        service: begins the names of the events, as in `worker.event_lost`.
        log: carries the name of this one.
    """

    def __init__(self, service: str, log: structlog.stdlib.BoundLogger) -> None:
        self._service = service
        self._log = log
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)

    @property
    def counts(self) -> dict[str, int]:
        """How often each kind came up, e.g. `malformed_message/invalid_body`."""
        return {
            f"{event}/{kind}" if kind else event: count
            for event, kinds in self._counts.items()
            for kind, count in kinds.items()
        }

    def kinds(self, event: str) -> Counter[str]:
        """How often each kind of one event came up."""
        return self._counts[event]

    def add(self, event: str, kind: str = "", **context: object) -> None:
        """Count one more; the first is logged with its context.

        Args:
            event: what happened.
            kind: of the event, if it has several.
            context: goes into the warning.
        """
        kinds = self._counts[event]
        kinds[kind] += 1
        if kinds[kind] == 1:
            shown = {name: str(value)[:_LONGEST] for name, value in context.items()}
            if kind:
                shown["kind"] = str(kind)
            self._log.warning(f"{self._service}.{event}", **shown)

    def report(self) -> None:
        """Log how often each kind of each event came up."""
        for event, kinds in self._counts.items():
            if kinds:
                total = {str(kind): count for kind, count in kinds.items()}
                self._log.warning(f"{self._service}.{event}", total=total)
