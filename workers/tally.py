"""What went wrong so far: counted by kind, and told once per kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import structlog

_LONGEST = 300
"""Characters of what somebody else has sent us."""


class Tally:
    """Logs the first of each kind: whoever sends one such message may send thousands."""

    def __init__(self, log: structlog.stdlib.BoundLogger) -> None:
        self._log = log
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        """How often each kind came up."""
        return dict(self._counts)

    def add(self, event: str, kind: str | None = None, **context: Any) -> None:
        """Count one more; the first is a warning with its context.

        Args:
            event: what happened, which is the kind unless there are several.
            kind: tells kinds of one event apart.
            context: goes into the warning.
        """
        name = event if kind is None else f"{event}/{kind}"
        self._counts[name] += 1
        if self._counts[name] == 1:
            if kind is not None:
                context["kind"] = kind
            told = {name: str(value)[:_LONGEST] for name, value in context.items()}
            self._log.warning(f"worker.{event}", **told)
