"""The log of a sweep over a journal that does as the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import pytest
from support.virtual_time import run_in_virtual_time

from schemas.journal import (
    Proposed,
    Requested,
    SamplerStats,
    Stopped,
    Suggested,
    SweepFact,
)
from schemas.results import CandidateRecord
from spica_async.errors import first_cause
from spica_async.journal.port import Fact, Lease, LeaseLostError, StatusUpdate, SweepTakenError
from spica_async.search.fact_log import SweepLog
from spica_async.storage.errors import (
    StorageBusyError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)

LEASE = Lease("me", 30.0)
RECORD = CandidateRecord(
    candidate_id="sweep-agg-0",
    branch="agg",
    round=1,
    number=0,
    outcome="failed",
    used_gpus=1,
    config={},
    source="list",
    found_seconds=0.0,
)
SUGGESTED = Suggested(
    at=0.0,
    branch="agg",
    proposals=[Proposed(number=0, source="list", index=0, sample="x")],
    costs=SamplerStats(),
)


def fact(number: int) -> SweepFact:
    return Requested(at=0.0, branch="agg", number=number)


@dataclass
class FakeJournal:
    """Keeps what it is given; `fail` may raise before or, with `after`, behind a commit."""

    last: int = 0
    batches: list[list[str]] = field(default_factory=list)
    changes: list[StatusUpdate] = field(default_factory=list)
    fail: Callable[[int], Exception | None] = lambda _: None
    fail_after: Callable[[int], Exception | None] = lambda _: None
    appends: int = 0
    takes: list[float] = field(default_factory=list)
    take_error: Exception | None = None
    given_back: list[str] = field(default_factory=list)

    async def append(
        self, sweep_id: str, owner: str, facts: Sequence[Fact], *, after: int, changes: StatusUpdate
    ) -> int:
        self.appends += 1
        await asyncio.sleep(0.01)
        error = self.fail(self.appends)
        if error is not None:
            raise error
        if after + len(facts) != self.last or not facts:
            assert after == self.last
            self.batches.append([one.body for one in facts])
            self.changes.append(changes)
            self.last += len(facts)
        error = self.fail_after(self.appends)
        if error is not None:
            raise error
        return self.last

    async def take(self, sweep_id: str, lease: Lease) -> int:
        self.takes.append(asyncio.get_running_loop().time())
        if self.take_error is not None:
            raise self.take_error
        return self.last

    async def give_back(self, sweep_id: str, owner: str) -> None:
        self.given_back.append(owner)

    @property
    def numbers(self) -> list[int]:
        facts = [Requested.model_validate_json(body) for batch in self.batches for body in batch]
        return [one.number for one in facts]


@dataclass
class FakeEvents:
    """Publishes each fact with its kind, and of what the test adds."""

    events: list[str] = field(default_factory=list)

    @property
    def pending(self) -> bool:
        return bool(self.events)

    def fact(self, fact: SweepFact) -> None:
        if isinstance(fact, Stopped):
            self.events.append("stopped")

    def candidate(self, record: CandidateRecord) -> None:
        self.events.append(record.candidate_id)

    def take(self, status: str | None = None) -> StatusUpdate:
        events, self.events = self.events, []
        return StatusUpdate(status=status, events=events)

    def on_change(self) -> None:
        pass


def opened(
    journal: FakeJournal, events: FakeEvents | None = None, patience: float = 600.0
) -> AbstractAsyncContextManager[SweepLog]:
    return SweepLog(
        journal,  # type: ignore[arg-type]  # what a log needs of one
        "sweep",
        LEASE,
        last=journal.last,
        events=events or FakeEvents(),  # type: ignore[arg-type]  # what a log needs of them
        patience_seconds=patience,
    ).open()


def test_facts_are_applied_in_order_and_written_together() -> None:
    journal = FakeJournal()
    applied: list[int] = []

    async def run() -> None:
        async with opened(journal) as log, asyncio.TaskGroup() as group:
            for number in range(20):

                def apply(number: int = number) -> None:
                    assert journal.last > number
                    applied.append(number)

                group.create_task(log.record(fact(number), apply))

    run_in_virtual_time(run())
    assert applied == journal.numbers == [*range(20)]
    # The first is written alone, the others while it was being written.
    assert len(journal.batches) <= 2
    assert journal.given_back == ["me"]


def test_what_a_fact_comes_to_is_returned_or_raised() -> None:
    async def run() -> None:
        async with opened(FakeJournal()) as log:
            assert await log.record(fact(0), lambda: 7) == 7
            with pytest.raises(ZeroDivisionError):
                await log.record(fact(1), lambda: 1 // 0)
            assert await log.record(fact(2), lambda: 8) == 8

    run_in_virtual_time(run())


def test_who_is_cancelled_has_its_fact_written_and_applied_all_the_same() -> None:
    journal = FakeJournal()
    applied: list[int] = []

    async def run() -> None:
        async with opened(journal) as log:
            recording = asyncio.ensure_future(log.record(fact(0), lambda: applied.append(0)))
            await asyncio.sleep(0)
            recording.cancel()
            await asyncio.wait({recording})

    run_in_virtual_time(run())
    assert journal.numbers == [0]
    assert applied == [0]


def test_an_error_that_nobody_waits_for_is_heard() -> None:
    async def run() -> None:
        async with opened(FakeJournal()) as log:
            recording = asyncio.ensure_future(log.record(fact(0), lambda: 1 // 0))
            await asyncio.sleep(0)
            recording.cancel()
            await asyncio.sleep(1)

    with pytest.raises(ExceptionGroup) as caught:
        run_in_virtual_time(run())
    assert isinstance(first_cause(caught.value), ZeroDivisionError)


@pytest.mark.parametrize("error", [StorageBusyError("busy"), StorageUnavailableError("away")])
@pytest.mark.parametrize("where", ["fail", "fail_after"])
def test_a_database_that_is_away_is_waited_for(error: StorageError, where: str) -> None:
    journal = FakeJournal()
    setattr(journal, where, lambda attempt: error if attempt <= 5 else None)

    async def run() -> None:
        async with opened(journal) as log:
            await log.record(fact(0), lambda: None)
            await log.record(fact(1), lambda: None)

    run_in_virtual_time(run())
    assert journal.numbers == [0, 1]


def test_the_patience_has_an_end() -> None:
    journal = FakeJournal(fail=lambda _: StorageUnavailableError("away"))

    async def run() -> None:
        async with opened(journal, patience=0.5) as log:
            await log.record(fact(0), lambda: None)

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(run())
    assert str(first_cause(caught.value)) == "away"
    assert journal.appends > 1


def test_a_full_disk_ends_the_sweep_at_once() -> None:
    journal = FakeJournal(fail=lambda _: StorageFullError("no room"))

    async def run() -> None:
        async with opened(journal) as log:
            with pytest.raises(asyncio.CancelledError):
                await log.record(fact(0), lambda: None)
            with pytest.raises(StorageUnavailableError):
                await log.record(fact(1), lambda: None)

    with pytest.raises(ExceptionGroup) as caught:
        run_in_virtual_time(run())
    assert str(first_cause(caught.value)) == "no room"
    assert journal.appends == 1


def test_the_lease_is_renewed_while_nothing_happens() -> None:
    journal = FakeJournal()

    async def run() -> None:
        async with opened(journal):
            await asyncio.sleep(3 * LEASE.seconds)

    run_in_virtual_time(run())
    pauses = [
        later - earlier for earlier, later in zip(journal.takes, journal.takes[1:], strict=False)
    ]
    assert len(journal.takes) >= 8
    assert max(pauses) < LEASE.seconds / 2


def test_a_sweep_that_another_has_taken_ends_here() -> None:
    journal = FakeJournal()

    async def run() -> None:
        async with opened(journal):
            journal.take_error = SweepTakenError("sweep", "another", 20.0)
            await asyncio.sleep(3600)

    with pytest.raises(ExceptionGroup) as caught:
        run_in_virtual_time(run())
    cause = first_cause(caught.value)
    assert isinstance(cause, LeaseLostError)
    assert "run by another" in str(cause)


def test_a_journal_that_is_away_does_not_end_the_lease_by_itself() -> None:
    journal = FakeJournal()

    async def run() -> None:
        async with opened(journal) as log:
            journal.take_error = StorageUnavailableError("away")
            await asyncio.sleep(100)
            journal.take_error = None
            await log.record(fact(0), lambda: None)

    run_in_virtual_time(run())
    assert journal.numbers == [0]


def test_a_lease_that_ran_out_is_taken_again_if_nobody_else_has_had_it() -> None:
    journal = FakeJournal(fail=lambda attempt: LeaseLostError("late") if attempt == 1 else None)

    async def run() -> None:
        async with opened(journal) as log:
            await log.record(fact(0), lambda: None)

    run_in_virtual_time(run())
    assert journal.numbers == [0]
    assert len(journal.takes) == 1


def test_a_lease_that_ran_out_is_lost_where_somebody_has_gone_on() -> None:
    journal = FakeJournal(fail=lambda _: LeaseLostError("late"))

    async def run() -> None:
        async with opened(journal) as log:
            journal.last = 5
            await log.record(fact(0), lambda: None)

    with pytest.raises(ExceptionGroup) as caught:
        run_in_virtual_time(run())
    assert "somebody else has gone on" in str(first_cause(caught.value))


def test_what_is_published_goes_with_the_next_fact_or_soon_by_itself() -> None:
    journal, events = FakeJournal(), FakeEvents()

    async def run() -> None:
        async with opened(journal, events) as log:
            await log.record(fact(0), lambda: events.events.append("zero"))
            await log.record(fact(1), lambda: events.events.append("one"))
            await asyncio.sleep(1)
            assert [news.events for news in journal.changes] == [[], ["zero"], ["one"]]
            await log.record(fact(2), lambda: events.events.append("two"))

    run_in_virtual_time(run())
    assert [news.events for news in journal.changes] == [[], ["zero"], ["one"], [], ["two"]]


def test_the_last_fact_goes_with_what_is_published_of_it() -> None:
    journal, events = FakeJournal(), FakeEvents()

    async def run() -> None:
        async with opened(journal, events) as log, asyncio.TaskGroup() as group:
            group.create_task(log.record(SUGGESTED, lambda: events.events.append("zero")))
            end = Stopped(at=1.0, reason="asked for")
            group.create_task(log.record(end, lambda: None, status="paused"))

    run_in_virtual_time(run())
    assert [(news.events, news.status) for news in journal.changes] == [
        ([], None),
        (["zero", "stopped"], "paused"),
    ]


def test_who_waits_hears_when_nothing_more_is_written() -> None:
    journal = FakeJournal(fail=lambda _: StorageFullError("no room"))
    refused: list[str] = []

    async def wait_in_vain(log: SweepLog) -> None:
        try:
            await log.record(fact(0), lambda: None)
        except StorageFullError as error:
            refused.append(str(error))

    async def run() -> None:
        waiting: list[asyncio.Task[None]] = []
        try:
            async with opened(journal) as log:
                # Not in the context's own task, which is cancelled.
                waiting += [asyncio.create_task(wait_in_vain(log)) for _ in range(3)]
                await asyncio.sleep(1)
        finally:
            await asyncio.wait(waiting, timeout=1)

    with pytest.raises(ExceptionGroup):
        run_in_virtual_time(run())
    assert refused == ["no room"] * 3


def test_the_verdict_on_a_result_is_published_together_with_it() -> None:
    journal, events = FakeJournal(), FakeEvents()

    async def run() -> None:
        async with opened(journal, events) as log:
            await log.record(fact(0), lambda: None, verdict=lambda: RECORD)

    run_in_virtual_time(run())
    assert [news.events for news in journal.changes] == [[RECORD.candidate_id]]


def test_what_nobody_waits_for_goes_with_what_somebody_does() -> None:
    journal = FakeJournal()

    async def run() -> None:
        async with opened(journal) as log:
            log.note(fact(0))
            await asyncio.sleep(0)
            await log.record(fact(1), lambda: None)
            log.note(fact(2))
            await asyncio.sleep(1)
            assert len(journal.batches) == 2
            log.note(fact(3))

    run_in_virtual_time(run())
    assert journal.numbers == [0, 1, 2, 3]
    assert len(journal.batches) == 3


def test_who_is_cancelled_waits_no_longer_for_a_journal_that_is_away() -> None:
    journal = FakeJournal(fail=lambda _: StorageUnavailableError("away"))
    took = 0.0

    async def run() -> None:
        async with opened(journal) as log:
            await log.record(fact(0), lambda: None)

    async def give_up() -> None:
        nonlocal took
        clock = asyncio.get_running_loop().time
        running = asyncio.ensure_future(run())
        await asyncio.sleep(20)
        asked = clock()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        took = clock() - asked

    run_in_virtual_time(give_up())
    assert took < 15
