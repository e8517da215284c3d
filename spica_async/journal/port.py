"""What a store of sweeps has to do, whichever database it keeps them in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, get_args

from schemas.results import SweepStatus
from spica_async.storage.errors import StorageError


class SweepUnknownError(StorageError):
    """There is no such sweep."""


class SweepExistsError(StorageError):
    """There is a sweep of that name already."""


class SweepTakenError(StorageError):
    """Another coordinator runs the sweep.

    Attributes:
        owner: Who.
        seconds: How long its lease still lasts if it is not renewed.
    """

    def __init__(self, sweep_id: str, owner: str, seconds: float) -> None:
        super().__init__(
            f"sweep {sweep_id} is run by {owner}; should it have died, the sweep can be had in "
            f"{max(0.0, seconds):.0f} s"
        )
        self.owner = owner
        self.seconds = seconds


class LeaseLostError(StorageError):
    """Whoever writes does not run the sweep any more: nothing was written."""


class JournalConflictError(StorageError):
    """Somebody wrote facts in between: nothing was written."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Who runs a sweep, and for how long.

    Attributes:
        owner: Its name, which no other process has.
        seconds: From now on, unless it is renewed.
    """

    owner: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StoredSweep:
    """What the journal has of a sweep from its submission on.

    Attributes:
        sweep_id: Its name.
        folder: Where its results go.
        config: The configuration, as JSON.
        priority: Higher goes first.
        managed: Whether daemons may run it by themselves.
        use_cache: Whether what was measured before need not be measured again.
        summary: What a list shows of it, as JSON.
    """

    sweep_id: str
    folder: str
    config: str
    priority: int = 0
    managed: bool = False
    use_cache: bool = True
    summary: str = "{}"


@dataclass(frozen=True, slots=True)
class NewSweep(StoredSweep):
    """A sweep to be.

    Attributes:
        events: Its first events, each as JSON.
        token: Names its submission, which may come again; None if nobody has named it.
    """

    events: Sequence[str] = ()
    token: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRow(StoredSweep):
    """A sweep as it stands in the journal.

    Attributes:
        status: As the last that wrote it says.
        submitted_at: Seconds since the epoch, by the database's clock.
        owner: Who runs it, or ran it last; None if nobody has, or it was given back.
        lease_seconds: How long the owner's lease still lasts; 0 or less once it has run out.
        last: Number of its latest fact; 0 if it has none.
        requested: What its coordinator is asked to do, `pause` or `cancel`; None if nothing.
        events: Number of the latest event; 0 if there is none.
        published: Number of the latest event that was published.
    """

    status: str
    submitted_at: float
    owner: str | None
    lease_seconds: float
    last: int
    requested: str | None
    events: int
    published: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sweep stands among all: the next ones were submitted before it.

    Attributes:
        submitted_at: Of the sweep, as `SweepRow` has it.
        sweep_id: Its name.
    """

    submitted_at: float
    sweep_id: str


@dataclass(frozen=True, slots=True)
class RecentEvents:
    """Which events are new.

    Attributes:
        at: When that was asked, in seconds since the epoch by the database's clock.
        numbers: Of the events of each sweep that has any, the first and the last.
    """

    at: float
    numbers: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that is so from now on.

    Attributes:
        kind: Its name.
        body: As JSON.
    """

    kind: str
    body: str


@dataclass(frozen=True, slots=True)
class RecordedFact:
    """A fact of a sweep, in its place.

    Attributes:
        number: From 1, without gaps.
        recorded_at: Seconds since the epoch, by the database's clock.
        fact: What it is.
    """

    number: int
    recorded_at: float
    fact: Fact


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event of a sweep, in its place.

    Attributes:
        number: From 1, without gaps.
        body: As JSON.
    """

    number: int
    body: str


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """What changes of a sweep together with its facts.

    Attributes:
        status: The sweep's new status; None leaves it as it is.
        summary: What a list shows of it from now on, as JSON; None leaves it as it is.
        events: To be published, each as JSON.
        events_after: The number of the latest event so far.
        managed: Whether daemons may run it by themselves from now on; None leaves it as it is.
            Where nothing was published before that, all that there was counts as published.
        request_done: Whether every request is done with, and not only what the status answers; see
            `requests_done_by`.
    """

    status: str | None = None
    summary: str | None = None
    events: Sequence[str] = ()
    events_after: int = 0
    managed: bool | None = None
    request_done: bool = False


ENDED: Final = frozenset(get_args(SweepStatus)) - {"interrupted"}
"""The statuses of sweeps that have come to their end by themselves."""

REQUESTS: Final = ("pause", "cancel")
"""What the coordinator of a sweep can be asked to do."""


def requests_done_by(status: str) -> Sequence[str]:
    """The requests that are done with once a sweep has come to a status.

    A pause does not answer a request to cancel.
    """
    match status:
        case "queued" | "running":
            return ()
        case "paused" | "interrupted" | "failed":
            return ("pause",)
        case _:
            return REQUESTS


class Journal(Protocol):
    """Sweeps, who runs each, and what has become of it.

    What a verb has returned from is on disk. One that raises has changed nothing, unless the
    connection was lost in the middle of it: then the change is whole or not there at all. So it is
    with one that is cancelled; by the time that its caller hears of it, it has come to its end.

    Every verb may raise StorageUnavailableError, StorageBusyError, StorageFullError or
    StorageDamagedError, and can be called again after any of them.
    """

    async def check_writable(self) -> None:
        """Write what changes nothing.

        Raises:
            StorageError: if nothing can be written.
        """

    async def create(self, sweep: NewSweep, lease: Lease | None = None) -> None:
        """Take in a sweep: `running` and held by the lease's owner, else `queued` and nobody's.

        Raises:
            SweepExistsError: if there is one of that name, or of that token.
        """

    async def submitted_as(self, token: str) -> str | None:
        """The name of the sweep whose submission was named so; None if there is none."""

    async def sweep(self, sweep_id: str) -> SweepRow:
        """One sweep.

        Raises:
            SweepUnknownError: if there is none of that name.
        """

    async def sweeps(
        self,
        statuses: Collection[str] | None = None,
        *,
        after: Place | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> list[SweepRow]:
        """All sweeps, or those of some statuses, the latest submitted first.

        Their configurations are left out: `sweep` has them.

        Args:
            statuses: Which; None: all.
            after: Only those that come after this one, which may have been removed meanwhile.
            offset: How many of them are left out; each of these takes its time.
            limit: How many at most; None: all.
        """

    async def wanted(self, statuses: Collection[str]) -> list[SweepRow]:
        """The sweeps of some statuses, and those of which something is asked, as `sweeps` has them.

        How many others there are is of no account.
        """

    async def counts(self) -> dict[str, int]:
        """How many sweeps there are of each status that any has."""

    async def recent_events(self, since: float | None = None) -> RecentEvents:
        """Which events were recorded lately, by whichever coordinator.

        Args:
            since: `at` of an earlier answer: none is left out that this did not have yet. Some that
                it had are among them, too. None: those of the last half minute.
        """

    async def take(self, sweep_id: str, lease: Lease, *, instead_of: str | None = None) -> int:
        """Run a sweep that nobody runs, or go on running it.

        Args:
            sweep_id: Which.
            lease: Who is to run it from now on, and for how long.
            instead_of: An owner known to be dead: if the lease is its, it need not run out first.

        Returns:
            The number of its latest fact; 0 if it has none.

        Raises:
            SweepUnknownError: if there is none of that name.
            SweepTakenError: if somebody else runs it.
        """

    async def give_back(self, sweep_id: str, owner: str) -> None:
        """Stop running a sweep; nothing happens if somebody else runs it by now."""

    async def request(self, sweep_id: str, action: str) -> bool:
        """Ask the coordinator of a sweep to pause or cancel it; to cancel is not weakened to pause.

        Returns:
            Whether it is queued or running. Of others nothing is asked.

        Raises:
            SweepUnknownError: if there is none of that name.
        """

    async def remove(self, sweep_id: str, *, only_from: Collection[str] | None = None) -> bool:
        """Forget a sweep that nobody runs, with all its facts and events, published or not.

        Args:
            sweep_id: Which.
            only_from: The statuses that it may have; None: any.

        Returns:
            Whether it is gone. If not, it is of another status by now.

        Raises:
            SweepUnknownError: if there is none of that name.
            SweepTakenError: if somebody runs it.
        """

    async def long_ended(
        self, statuses: Collection[str], *, for_seconds: float, limit: int
    ) -> list[str]:
        """Sweeps of some statuses that nobody runs, and of which nothing was written lately.

        Args:
            statuses: Which.
            for_seconds: For how long nothing was written.
            limit: How many at most.
        """

    async def append(
        self,
        sweep_id: str,
        owner: str,
        facts: Sequence[Fact],
        *,
        after: int,
        changes: StatusUpdate | None = None,
    ) -> int:
        """Write facts and what goes with them, all of it or nothing.

        A commit whose answer was lost is simply tried again: if those very facts and events stand
        at their numbers and are the latest, nothing is written and all is well.

        Args:
            sweep_id: Of which sweep.
            owner: Who writes, and must have the lease.
            facts: What to write.
            after: The number of the latest fact so far; they are numbered from the next one on.
            changes: What others see of it from now on; None changes nothing of that.

        Returns:
            The number of the last of them.

        Raises:
            LeaseLostError: if the owner's lease has run out, or somebody else has taken the sweep.
            JournalConflictError: if the latest fact is another one.
        """

    def facts(self, sweep_id: str, after: int = 0) -> AsyncIterator[RecordedFact]:
        """The facts of a sweep that come after a number, in order; none for an unknown sweep."""

    async def latest(
        self, sweep_id: str, kinds: Collection[str], *, after: int = 0
    ) -> RecordedFact | None:
        """The latest fact of a sweep, after a number, that is of one of these kinds, if any is."""

    def events(self, sweep_id: str, after: int = 0) -> AsyncIterator[RecordedEvent]:
        """The events of a sweep after a number, in order; none for an unknown sweep."""

    async def unpublished(self) -> list[str]:
        """The managed sweeps with events that are not published, the earliest first."""

    async def mark_published(self, sweep_id: str, number: int) -> None:
        """Note that all events up to this number are published."""

    async def begin_publishing(self, sweep_id: str, lease: Lease) -> bool:
        """Become the publisher of a sweep's events, if there is none; its coordinator need not ask.

        Returns:
            Whether we are. False, too, for a sweep that is unknown.
        """

    async def end_publishing(self, sweep_id: str, owner: str) -> None:
        """Let others publish a sweep's events; nothing happens if somebody else does by now."""
