"""The earlier runs of a sweep, summed up from its facts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError

from schemas.journal import SWEEP_FACT, Ended, Measured, Planned, Started, Stopped, SweepFact
from spica_async.journal.port import Journal
from spica_async.processes.garbage import not_collected
from spica_async.storage.errors import StorageDamagedError

MEMORY_BUS: Final = "memory"
"""Names the bus that ends with its process, and takes with it what was under way."""


@dataclass(slots=True)
class PastRuns:
    """The facts of a sweep so far.

    Attributes:
        facts: all of them, in order.
        last: number of the latest; 0 if there are none.
        planned: what was settled before its first run.
        runs: how often it was begun or resumed.
        elapsed_seconds: how long it has run for, the planning before its first run included.
        search_seconds: the same, without any planning.
        futile_runs: how many runs in a row have died before they had measured anything.
        ended: how it ended, if it has.
    """

    facts: list[SweepFact] = field(default_factory=list)
    last: int = 0
    planned: Planned | None = None
    runs: int = 0
    elapsed_seconds: float = 0.0
    search_seconds: float = 0.0
    futile_runs: int = 0
    ended: Ended | None = None
    _started_at: float | None = None

    @classmethod
    async def read(cls, journal: Journal, sweep_id: str) -> PastRuns:
        """Read the facts of a sweep.

        Raises:
            StorageDamagedError: one of them cannot be read.
            StorageError: the journal cannot be read.
        """
        past = cls()
        with not_collected():
            async for recorded in journal.facts(sweep_id):
                try:
                    past.add(SWEEP_FACT.validate_json(recorded.fact.body))
                except ValidationError as error:
                    raise StorageDamagedError(
                        f"sweep {sweep_id}: fact {recorded.number}, of kind"
                        f" {recorded.fact.kind!r}, cannot be read: {error.errors()[0]['msg']}"
                    ) from error
                past.last = recorded.number
        return past

    def add(self, fact: SweepFact) -> None:
        """Take in the next fact."""
        self.facts.append(fact)
        if isinstance(fact, Started):
            self.runs = fact.run
            self.futile_runs += 1
            self._started_at = fact.at
        elif self._started_at is not None:
            self.search_seconds += max(0.0, fact.at - max(self._started_at, self.elapsed_seconds))
        if isinstance(fact, Measured | Stopped):
            self.futile_runs = 0
        if isinstance(fact, Planned):
            self.planned = fact
        elif isinstance(fact, Ended):
            self.ended = fact
        self.elapsed_seconds = max(self.elapsed_seconds, fact.at)


def requests_survive(bus: str, next_bus: str) -> bool:
    """Whether requests that a run has sent over one bus may be under way in the next run."""
    return bus == next_bus and bus != MEMORY_BUS
