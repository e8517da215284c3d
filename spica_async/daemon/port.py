"""What a daemon can be asked to do, whoever asks: HTTP, AMQP or a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from schemas.config import SmartSearchConfig
from schemas.daemon import CandidatePage, SweepDetail, SweepSummary
from schemas.lifecycle import SweepEvent
from spica_async.errors import InputError, SpicaError


class UnknownSweepError(SpicaError):
    """There is no such sweep."""


class QueueFullError(SpicaError):
    """As many sweeps wait as may: worth trying again later."""


class WrongStateError(SpicaError):
    """The sweep is in no state for that, e.g. it has ended."""


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

    async def sweeps(self) -> Sequence[SweepSummary]:
        """All sweeps, the latest submitted first."""

    async def sweep(self, sweep_id: str) -> SweepDetail:
        """One sweep. Raises UnknownSweepError."""

    async def candidates(self, sweep_id: str, *, offset: int, limit: int) -> CandidatePage:
        """Some of its candidates, in the order of their measurement. Raises UnknownSweepError."""

    async def cancel(self, sweep_id: str) -> SweepSummary:
        """End it; what was found is kept. Raises UnknownSweepError, WrongStateError."""

    async def pause(self, sweep_id: str) -> SweepSummary:
        """Let it rest until it is resumed. Raises UnknownSweepError, WrongStateError."""

    async def resume(self, sweep_id: str) -> SweepSummary:
        """Queue it again, if it rests, has failed or was interrupted.

        Raises UnknownSweepError, WrongStateError, QueueFullError.
        """

    async def remove(self, sweep_id: str) -> None:
        """Forget a sweep that has ended or rests, with its events, told or not; its folder stays.

        Raises UnknownSweepError, WrongStateError.
        """

    def events(self, sweep_id: str | None, *, after: int = 0) -> AsyncIterator[SweepEvent]:
        """What happens, for as long as the caller listens.

        Args:
            sweep_id: of one sweep, from its event `after` on, ending with the sweep; None: of all,
                from now on.
            after: number of the last event that is known.

        Raises:
            UnknownSweepError: there is no such sweep.
        """

    async def troubles(self) -> Sequence[str]:
        """What keeps it from working, each in a line; none if it is ready."""


__all__ = [
    "Control",
    "InputError",
    "QueueFullError",
    "UnknownSweepError",
    "WrongStateError",
]
