"""The verbs of a daemon, as HTTP and AMQP commands use them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from schemas.config import SmartSearchConfig
from schemas.daemon import CandidatePage, StoredState, SweepDetail, SweepState, SweepSummary
from schemas.lifecycle import SweepEvent
from spica_async.errors import SpicaError

MAX_PAGE: Final = 1000
"""Sweeps or candidates in one answer."""
MAX_NUMBER: Final = 2**31 - 1
"""Of an event, or of what a page begins with: PostgreSQL counts so far."""


class QueueFullError(SpicaError):
    """As many sweeps wait as may: worth trying again later."""


class ArtifactUnknownError(SpicaError):
    """The sweep has no artifact of that candidate."""


class WrongStateError(SpicaError):
    """The sweep is in no state for that, e.g. it has ended."""


@dataclass(frozen=True, slots=True)
class SweepPage:
    """Some sweeps of a list.

    Attributes:
        sweeps: the latest submitted first.
        next: names the place where the next page begins; None: there is none.
    """

    sweeps: Sequence[SweepSummary]
    next: str | None


@dataclass(frozen=True, slots=True)
class UnreadableEvent:
    """An event that was stored by another version, and means nothing to this one.

    Attributes:
        sweep_id: the name of the sweep.
        number: the number of the event in its sweep.
    """

    sweep_id: str
    number: int

    def __str__(self) -> str:
        return f"event {self.number} of sweep {self.sweep_id} cannot be read by this version"


Events = AsyncGenerator[SweepEvent | UnreadableEvent, None]


class Control(Protocol):
    """The verbs of a daemon. Every one may raise a `SpicaError` where the journal fails."""

    async def submit(
        self,
        config: SmartSearchConfig,
        *,
        priority: int,
        use_cache: bool,
        token: str | None = None,
    ) -> SweepSummary:
        """Take in a sweep; it is in the journal when this returns.

        Args:
            config: what to search.
            priority: see `SweepSubmission`.
            use_cache: see `SweepSubmission`.
            token: names the submission, so that one that comes again makes no other sweep.

        Raises:
            InputError: it can never be run, e.g. for its trace; or the token names another one.
            QueueFullError: see there.
        """

    async def sweeps(
        self,
        state: StoredState | None = None,
        *,
        before: str | None = None,
        offset: int = 0,
        limit: int = 1000,
    ) -> SweepPage:
        """Some of the sweeps, or of those in one state, the latest submitted first.

        Args:
            state: the state of the sweeps; None: any.
            before: `next` of the page before.
            offset: sweeps to leave out before the first.
            limit: the most sweeps in the page.

        Raises:
            InputError: `before` names no place.
        """

    async def counts(self) -> Mapping[SweepState, int]:
        """How many sweeps there are in each state that any is in."""

    async def sweep(self, sweep_id: str) -> SweepDetail:
        """One sweep. Raises SweepUnknownError."""

    async def candidates(self, sweep_id: str, *, offset: int, limit: int) -> CandidatePage:
        """Some of its candidates, in the order of their measurement. Raises SweepUnknownError."""

    async def artifact(self, sweep_id: str, candidate_id: str) -> bytes:
        """What a candidate has left behind, as gzipped JSON.

        Raises SweepUnknownError, ArtifactUnknownError.
        """

    async def cancel(self, sweep_id: str) -> SweepSummary:
        """End it; what was found is kept. Raises SweepUnknownError, WrongStateError."""

    async def pause(self, sweep_id: str) -> SweepSummary:
        """Stop it until it is resumed. Raises SweepUnknownError, WrongStateError."""

    async def resume(self, sweep_id: str) -> SweepSummary:
        """Queue it again, if it was stopped, has failed or was interrupted.

        Raises SweepUnknownError, WrongStateError, QueueFullError.
        """

    async def remove(self, sweep_id: str) -> None:
        """Forget a sweep that has ended or was stopped, with all its events; its folder stays.

        Raises SweepUnknownError, WrongStateError.
        """

    async def has_more_events(self, sweep_id: str, *, after: int) -> bool:
        """Whether a sweep has events behind one, or may have some yet. Raises SweepUnknownError."""

    def events(self, sweep_id: str | None, *, after: int = 0) -> Events:
        """What happens, for as long as the caller listens.

        Args:
            sweep_id: of one sweep, from its event `after` on, ending with the sweep; None: of all,
                from now on.
            after: number of the last event that is known.

        Raises:
            SweepUnknownError: there is no such sweep.
        """

    async def troubles(self) -> Sequence[str]:
        """What keeps it from working, each in a line; none if it is ready."""
