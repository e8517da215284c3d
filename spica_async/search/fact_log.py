"""The log of one running sweep: facts in order, on disk before anything comes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol, Self, TypeVar

import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_delay,
    wait_exponential,
)

from schemas.journal import Suggested, SweepFact
from schemas.results import CandidateRecord
from spica_async.journal.port import (
    Fact,
    Journal,
    Lease,
    LeaseLostError,
    StatusUpdate,
    SweepTakenError,
)
from spica_async.search.events.pending import PendingEvents
from spica_async.storage.errors import StorageBusyError, StorageError, StorageUnavailableError

PATIENCE_SECONDS: Final = 600.0
"""How long a database may be away before the sweep is given up; nothing is lost then either."""

_LONGEST_PAUSE_SECONDS: Final = 5.0
LAST_SECONDS: Final = 5.0
_WRITTEN_WITHIN_SECONDS: Final = 0.05
_RENEWALS_PER_LEASE: Final = 3

log = structlog.get_logger(__name__)
ResultT = TypeVar("ResultT")


class FactLog(Protocol):
    """Where the facts of a sweep go before they are acted upon."""

    async def record(
        self,
        fact: SweepFact,
        apply: Callable[[], ResultT],
        *,
        status: str | None = None,
        verdict: Callable[[], CandidateRecord | None] | None = None,
    ) -> ResultT:
        """Write a fact down, and once it is there apply it; returns what that returns.

        Facts are applied in the order in which they stand in the log, with nothing in between, so
        that what has become of them can be worked out again from the log alone. A caller that is
        cancelled meanwhile has its fact written and applied all the same.

        Args:
            fact: what is so from now on.
            apply: lets it have its effect, without waiting for anything.
            status: the sweep's from now on; None leaves it as it is.
            verdict: works out the record of a candidate, if there is one yet, before the fact has
                its effect; the events of it are written together with the fact.

        Raises:
            StorageError: it cannot be written. Then it is not applied.
        """

    async def settled(self) -> None:
        """Wait until all that was recorded or noted so far is written and applied.

        Raises:
            StorageError: it cannot be written.
        """

    def note(self, fact: SweepFact) -> None:
        """Write a fact down soon that has had its effect, and that nobody need wait for.

        It is for what is no loss: were it not written, it would come to the same again. It may
        have been applied before facts that stand in front of it, so it must not depend on them.

        Raises:
            StorageError: nothing more can be written.
        """


@dataclass(frozen=True, slots=True)
class _Entry:
    """A fact to be written, or none; `applied` is None where it has had its effect already."""

    fact: SweepFact | None
    status: str | None = None
    verdict: Callable[[], CandidateRecord | None] | None = None
    apply: Callable[[], Any] = lambda: None
    applied: asyncio.Future[Any] | None = None


@dataclass(slots=True)
class SweepLog:
    """Writes the facts of one sweep to a journal, for as long as the lease on the sweep is ours.

    What comes while the disk is busy is then written in one go, so that many evaluations at a time
    wait no longer than one.

    Attributes:
        journal: the journal that has the sweep.
        sweep_id: the name of a sweep that we have taken.
        lease: the lease by which we have the sweep.
        last: the number of its latest fact.
        events: makes events of the facts, which are written with them.
        patience_seconds: how long the database may be away.
    """

    journal: Journal
    sweep_id: str
    lease: Lease
    last: int
    events: PendingEvents
    patience_seconds: float = PATIENCE_SECONDS
    _entries: asyncio.Queue[_Entry | None] = field(default_factory=asyncio.Queue, init=False)
    _taken: list[_Entry] = field(default_factory=list, init=False)
    _closed: bool = field(default=False, init=False)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Write, and renew the lease, while the context is open; then give the sweep back.

        Raises:
            StorageError: in a group, when nothing more can be written; the context is cancelled.
        """
        try:
            async with asyncio.TaskGroup() as group:
                writing = group.create_task(self._write_all())
                renewing = group.create_task(self._renew())
                patience = None
                try:
                    yield self
                except asyncio.CancelledError:
                    # What is to end at once does not wait for a database that is away.
                    patience = LAST_SECONDS
                    raise
                finally:
                    self._closed = True
                    # What was handed over is written, even where nobody waits for it any more.
                    self._entries.put_nowait(None)
                    await asyncio.wait({writing}, timeout=patience)
                    writing.cancel()
                    renewing.cancel()
        finally:
            await self._give_back()

    async def record(
        self,
        fact: SweepFact,
        apply: Callable[[], ResultT],
        *,
        status: str | None = None,
        verdict: Callable[[], CandidateRecord | None] | None = None,
    ) -> ResultT:
        """See `FactLog.record`."""
        applied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._put(_Entry(fact, status, verdict, apply, applied))
        result: ResultT = await applied
        return result

    async def settled(self) -> None:
        """See `FactLog.settled`."""
        applied: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._put(_Entry(None, applied=applied))
        await applied

    def note(self, fact: SweepFact) -> None:
        """See `FactLog.note`."""
        self._put(_Entry(fact))

    def _put(self, entry: _Entry) -> None:
        if self._closed:
            raise StorageUnavailableError(f"sweep {self.sweep_id} is not written any more")
        self._entries.put_nowait(entry)

    async def _write_all(self) -> None:
        try:
            closing = False
            while not closing:
                taken = await self._next()
                closing = None in taken
                self._taken = [entry for entry in taken if entry is not None]
                for batch in _in_turn(self._taken):
                    await self._write(batch)
                if self.events.pending and (closing or not self._taken):
                    await self._write([])
        except BaseException as error:
            self._give_up(error)
            raise

    def _give_up(self, error: BaseException) -> None:
        """Fail all who wait: what they have recorded is not written, or not known to be."""
        self._closed = True
        left = self._taken
        while not self._entries.empty():
            entry = self._entries.get_nowait()
            left += [] if entry is None else [entry]
        reason = error
        if not isinstance(error, StorageError):
            reason = StorageUnavailableError(f"sweep {self.sweep_id} is not written any more")
        for entry in left:
            if entry.applied is not None and not entry.applied.done():
                entry.applied.set_exception(reason)

    async def _next(self) -> list[_Entry | None]:
        """What is to be written next, a None behind it when that is all; maybe nothing for now."""
        clock = asyncio.get_running_loop().time
        taken: list[_Entry | None] = []
        until: float | None = None
        while all(entry is not None and entry.applied is None for entry in taken):
            if until is None and (taken or self.events.pending):
                # Nobody waits for these. Most often a fact comes at once that takes them along.
                until = clock() + _WRITTEN_WITHIN_SECONDS
            try:
                async with asyncio.timeout_at(until):
                    taken.append(await self._entries.get())
            except TimeoutError:
                break
            while not self._entries.empty():
                taken.append(self._entries.get_nowait())
        return taken

    async def _write(self, entries: Sequence[_Entry]) -> None:
        facts: list[Fact] = []
        statuses = [entry.status for entry in entries if entry.status is not None]
        for entry in entries:
            if entry.fact is None:
                continue
            facts.append(Fact(entry.fact.kind, entry.fact.model_dump_json()))
            # With the fact itself, for this process may end before it could be done later.
            self.events.fact(entry.fact)
            record = entry.verdict() if entry.verdict is not None else None
            if record is not None:
                self.events.candidate(record)
        if facts or self.events.pending:
            await self._append(facts, self.events.take(statuses[-1] if statuses else None))
            self.events.on_change()
        for entry in entries:
            _apply(entry)

    async def _append(self, facts: Sequence[Fact], changes: StatusUpdate) -> None:
        append = partial(
            self.journal.append,
            self.sweep_id,
            self.lease.owner,
            facts,
            after=self.last,
            changes=changes,
        )
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type((StorageBusyError, StorageUnavailableError)),
            stop=stop_after_delay(self.patience_seconds),
            wait=wait_exponential(multiplier=0.1, max=_LONGEST_PAUSE_SECONDS),
            before_sleep=self._log_retry,
            reraise=True,
        ):
            with attempt:
                try:
                    await append()
                except LeaseLostError:
                    await self._take_again(len(facts))
                    await append()
        self.last += len(facts)

    async def _take_again(self, unsure: int) -> None:
        """Take a sweep back whose lease ran out, unless somebody has worked on it meanwhile.

        Args:
            unsure: how many facts of ours may have been written without our hearing of it.
        """
        try:
            last = await self.journal.take(self.sweep_id, self.lease)
        except SweepTakenError as error:
            raise LeaseLostError(str(error)) from error
        if last not in {self.last, self.last + unsure}:
            raise LeaseLostError(f"sweep {self.sweep_id}: somebody else has gone on with it")
        log.warning("journal.lease_taken_again", sweep=self.sweep_id)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self.lease.seconds / _RENEWALS_PER_LEASE)
            try:
                await self.journal.take(self.sweep_id, self.lease)
            except SweepTakenError as error:
                self._closed = True
                raise LeaseLostError(str(error)) from error
            except StorageError as error:
                # Whether that matters is for the next fact to find out.
                log.warning("journal.lease_not_renewed", sweep=self.sweep_id, error=str(error))

    async def _give_back(self) -> None:
        try:
            await self.journal.give_back(self.sweep_id, self.lease.owner)
        except StorageError as error:
            log.warning("journal.lease_kept", sweep=self.sweep_id, error=str(error))

    def _log_retry(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if state.attempt_number == 1:
            log.warning("journal.away", sweep=self.sweep_id, error=str(error))


def _in_turn(entries: Sequence[_Entry]) -> Iterator[Sequence[_Entry]]:
    """What to write in one go: suggestions come last in it.

    The events of samples without room come up only as suggestions have their effect, and are to
    come before those of later facts.
    """
    start = 0
    for at, entry in enumerate(entries, 1):
        if isinstance(entry.fact, Suggested) or at == len(entries):
            yield entries[start:at]
            start = at


def _apply(entry: _Entry) -> None:
    if entry.applied is None:
        return
    try:
        result = entry.apply()
    except Exception as error:
        if entry.applied.done():
            raise  # The task that waited for it was cancelled, and it should not go unheard.
        entry.applied.set_exception(error)
    else:
        if not entry.applied.done():
            entry.applied.set_result(result)
