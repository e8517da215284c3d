"""Counts what should not happen, and says each kind of it once."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

import structlog

_LONGEST = 200
"""Characters of what somebody else has sent us."""

log = structlog.get_logger(__name__)


class CountedWarnings:
    """How often things of each kind happened; the log has the first of a kind, and the counts.

    Whoever sends one odd message may send thousands.

    Attributes:
        counts: by kind.
    """

    def __init__(self, event: str) -> None:
        self.counts: Counter[StrEnum] = Counter()
        self._event = event

    def add(self, kind: StrEnum, **context: object) -> None:
        """Count one more."""
        self.counts[kind] += 1
        if self.counts[kind] == 1:
            told = {name: str(value)[:_LONGEST] for name, value in context.items()}
            log.warning(self._event, kind=kind.value, **told)

    def report(self) -> None:
        """Log the counts, if there are any."""
        if self.counts:
            total = {kind.value: count for kind, count in self.counts.items()}
            log.warning(self._event, total=total)
