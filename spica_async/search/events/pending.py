"""The events of one sweep: numbered here, and held until they are in the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from schemas.config import SmartSearchConfig
from schemas.journal import Ended, ListedSweep, Started, Stopped, SweepFact
from schemas.lifecycle import Lifecycle, SweepEvent, SweepSubmitted
from schemas.results import CandidateRecord
from spica_async.journal.port import StatusUpdate
from spica_async.search.events.from_facts import EventsFromFacts
from spica_async.search.observer import Observer


def submitted_event(sweep_id: str, config: SmartSearchConfig, *, priority: int = 0) -> str:
    """The first event of every sweep, as JSON."""
    space = config.search_space
    submitted = SweepSubmitted(
        model=space.model_name,
        hardware=space.hardware_sku,
        target=config.goal.target,
        priority=priority,
    )
    return SweepEvent.of(sweep_id, 1, submitted).model_dump_json(exclude_none=True)


def listed(config: SmartSearchConfig) -> ListedSweep:
    """What a list shows of a sweep that has not begun."""
    space = config.search_space
    return ListedSweep(
        model=space.model_name,
        hardware=space.hardware_sku,
        target=config.goal.target,
        per_branch=config.sweep.max_rounds * config.sweep.per_round,
        branches=len(space.deployment_mode),
    )


class PendingEvents(Observer):
    """Makes the events of a sweep from its first fact on, however often the sweep is resumed.

    Args:
        sweep_id: the name of the sweep.
        config: the configuration of the sweep.
        stored: how many events the journal has, the first one included.
        on_change: see the attribute.

    Attributes:
        on_change: called when the journal has more of them.
    """

    def __init__(
        self,
        sweep_id: str,
        config: SmartSearchConfig,
        *,
        stored: int,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._sweep_id = sweep_id
        self._from_facts = EventsFromFacts(config.goal)
        self._listed = listed(config)
        self._feasible = 0
        self._best: float | None = None
        self._reason: str | None = None
        self._summary: tuple[int, float | None, str | None] | None = None
        self._number = 1
        self._stored = max(stored, 1)
        self._pending: list[str] = []
        # The events since the latest fact.
        self._recent: list[Lifecycle] = []
        self.on_change = on_change

    @property
    def pending(self) -> bool:
        """Whether there is something that the journal has not got."""
        return bool(self._pending)

    def fact(self, fact: SweepFact) -> None:
        """Make events of a fact, before it has its effect."""
        late: Sequence[Lifecycle] = ()
        if isinstance(fact, Stopped) and fact.event is not None:
            late = self._taken_back(fact.event)
        self._recent.clear()
        self._number_all(self._from_facts.fact(fact))
        self._number_all(late)
        match fact:
            case Started():
                self._reason = None
            case Stopped():
                self._reason = fact.reason
            case Ended():
                self._reason = fact.result.reason

    def restoring(self, fact: SweepFact) -> None:
        """Number the events of an earlier run once more."""
        self.fact(fact)

    def restored(self, record: CandidateRecord) -> None:
        """Number what an earlier run has found."""
        self.candidate(record)

    def evaluated(self, record: CandidateRecord) -> None:
        """Take a sample that was never sent out; those that were come with their facts."""
        if record.timings is None:
            self.candidate(record)

    def candidate(self, record: CandidateRecord) -> None:
        """Make events of the verdict on a unique sample."""
        self._number_all(self._from_facts.evaluated(record))
        if record.outcome == "feasible" and record.score is not None:
            self._feasible += 1
            self._best = record.score if self._best is None else max(self._best, record.score)

    def take(self, status: str | None = None) -> StatusUpdate:
        """Take the events and the summary to store with the next facts; they count as stored."""
        events, self._pending = self._pending, []
        after, self._stored = self._stored, self._stored + len(events)
        now = self._feasible, self._best, self._reason
        summary = None
        if now != self._summary:
            self._summary = now
            changed = {"feasible": self._feasible, "best_score": self._best, "reason": self._reason}
            summary = self._listed.model_copy(update=changed).model_dump_json(exclude_none=True)
        return StatusUpdate(status=status, summary=summary, events=events, events_after=after)

    def _taken_back(self, number: int) -> Sequence[Lifecycle]:
        """What was yet to be written when somebody else wrote an event of that number.

        A coordinator that dies behind a suggestion leaves its events unwritten. The next run puts
        them behind that event, and so does every run after it.
        """
        count = min(max(0, self._number + 1 - number), len(self._recent))
        late = self._recent[len(self._recent) - count :]
        unwritten = min(count, max(0, self._number - self._stored))
        del self._pending[len(self._pending) - unwritten :]
        self._number -= count
        return late

    def _number_all(self, events: Iterable[Lifecycle]) -> None:
        for data in events:
            self._recent.append(data)
            self._number += 1
            if self._number > self._stored:
                event = SweepEvent.of(self._sweep_id, self._number, data)
                self._pending.append(event.model_dump_json(exclude_none=True))
