"""What is published of a sweep, however often its coordinators die in the middle of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from support.commands import small_sweep

from schemas.config import SmartSearchConfig
from schemas.journal import Proposed, SamplerStats, Started, Stopped, Suggested, SweepFact
from schemas.lifecycle import SWEEP_EVENT, CandidateMeasured, SweepEvent
from schemas.results import CandidateRecord
from spica_async.search.events.from_facts import EventsFromFacts
from spica_async.search.events.pending import PendingEvents, submitted_event

SUGGESTED = Suggested(
    at=0.0,
    branch="agg",
    proposals=[Proposed(number=0, source="list", index=0, sample="x")],
    costs=SamplerStats(),
)
CONFIG = SmartSearchConfig.model_validate(small_sweep())


def record(number: int) -> CandidateRecord:
    return CandidateRecord(
        candidate_id=f"sweep-agg-{number}",
        branch="agg",
        round=1,
        number=number,
        outcome="failed",
        used_gpus=1,
        config={},
        source="list",
        found_seconds=0.0,
    )


@dataclass
class Store:
    """A journal's facts, each with what it leads to, and its events."""

    facts: list[tuple[SweepFact, list[CandidateRecord]]] = field(default_factory=list)
    events: list[str] = field(default_factory=lambda: [submitted_event("sweep", CONFIG)])

    def pending(self) -> PendingEvents:
        """As made by each coordinator that goes on with the sweep."""
        events = PendingEvents("sweep", CONFIG, stored=len(self.events))
        for fact, records in self.facts:
            events.fact(fact)
            for one in records:
                events.evaluated(one)
        return events

    def write(self, events: PendingEvents, fact: SweepFact, records: list[CandidateRecord]) -> None:
        """Write a fact and what is published with it; what it leads to shows only then."""
        events.fact(fact)
        self.flush(events)
        self.facts.append((fact, records))
        for one in records:
            events.evaluated(one)

    def flush(self, events: PendingEvents) -> None:
        news = events.take()
        if news.events:
            assert news.events_after == len(self.events)
        self.events += news.events

    def rest(self) -> None:
        """Let it rest while nobody runs it."""
        number = len(self.events) + 1
        stopped = Stopped(at=0.0, reason="asked for", event=number)
        for data in EventsFromFacts(CONFIG.goal).fact(stopped):
            event = SweepEvent.of("sweep", number, data)
            self.events.append(event.model_dump_json(exclude_none=True))
        self.facts.append((stopped, []))


steps = st.lists(
    st.one_of(
        st.integers(0, 3).map(lambda count: ("suggest", count)),
        st.just(("flush", 0)),
        st.just(("start", 0)),
        st.integers(0, 2).map(lambda count: ("die and rest", count)),
    ),
    max_size=20,
)


@given(steps)
def test_each_thing_is_published_once_and_in_a_row(steps: list[tuple[str, int]]) -> None:
    store = Store()
    events = store.pending()
    rests = number = runs = 0
    for step, count in steps:
        match step:
            case "suggest":
                records = [record(number + one) for one in range(count)]
                number += count
                store.write(events, SUGGESTED, records)
            case "start":
                runs += 1
                store.write(events, Started(at=0.0, run=runs, owner="me", bus="memory"), [])
            case "flush":
                store.flush(events)
            case _:
                for _ in range(count):
                    store.rest()
                rests += count
                events = store.pending()
    store.flush(events)
    published = [SWEEP_EVENT.validate_json(body) for body in store.events]
    assert [event.sequence for event in published] == [*range(1, len(published) + 1)]
    measured = [event.data for event in published if isinstance(event.data, CandidateMeasured)]
    assert [one.candidate.number for one in measured] == [*range(number)]
    kinds = [event.data.kind for event in published]
    assert (kinds.count("sweep.paused"), kinds.count("sweep.started")) == (rests, runs)
    # Whatever had happened is published in the end.
    assert not store.pending().pending
