"""What a worker needs of its slots and of its traces, as protocols."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from schemas.messages import Cause, EvaluationRequest, Measurement, TraceLoad
from spica_async.errors import SpicaError


class UnavailableError(Exception):
    """What an evaluation needs cannot be had on this host now; the message has no secret in it.

    Attributes:
        cause: of a failure that comes of it in the end.
    """

    cause: ClassVar[Cause]


class ChildStartError(SpicaError):
    """A child could not be brought to take requests."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"no replay can be started: {problem}")


MAX_CHILD_DEATHS = 3
"""After so many the evaluation itself is taken to be what kills its child."""


@dataclass(slots=True)
class SlotStatistics:
    """What a slot has done so far; deaths are those that nobody asked for."""

    evaluations: int = 0
    child_starts: int = 0
    child_deaths: int = 0


@dataclass(slots=True)
class ChildDeaths:
    """How many children have died over one evaluation; counted on by each slot that tries it.

    While `setting_up`, the evaluation has not begun: a child starts, or is set up for it.
    """

    count: int = 0
    setting_up: bool = False


class EvaluationSlot(Protocol):
    """Room for one evaluation at a time.

    No two of the methods run at the same time, except that `kill` may come at any moment. After
    one that was cancelled only `end` or `close` may follow.
    """

    @property
    def index(self) -> int:
        """Which of its worker's slots it is, from 0."""

    @property
    def statistics(self) -> SlotStatistics:
        """What the slot has done so far."""

    @property
    def is_warm(self) -> bool:
        """Whether an evaluation could start at once."""

    async def start(self) -> None:
        """Become warm; without effect when it is.

        Raises:
            ChildStartError: it cannot, and is not expected to later.
        """

    async def evaluate(self, request: EvaluationRequest, deaths: ChildDeaths) -> Measurement:
        """Run one evaluation to its end; `MAX_CHILD_DEATHS` in all are one.

        Raises:
            ChildStartError: as `start`.
        """

    async def end(self) -> None:
        """End in good order whatever runs; the slot may be started again."""

    def kill(self) -> None:
        """End at once whatever runs, without waiting for it; `close` must follow."""

    async def close(self) -> None:
        """Leave nothing behind. May be repeated."""


class TraceProvider(Protocol):
    """Brings traces to where children can read them."""

    def use(self, load: TraceLoad) -> AbstractAsyncContextManager[Path]:
        """A file on this host with exactly this trace, which stays as long as the context.

        Raises:
            TraceUnavailableError: it cannot be had at the moment (on entry).
        """
