"""Hears what workers tell, and tells who shows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from enum import StrEnum
from typing import Final

from pydantic import ValidationError

from schemas.events import (
    EVALUATION_STARTED,
    WORKER_HEARTBEAT,
    WORKER_JOINED,
    WORKER_LEFT,
    EvaluationStarted,
    WorkerHeartbeat,
    WorkerJoined,
    WorkerLeft,
)
from spica_async.bus.port import Event
from spica_async.evaluate.counting import CountedWarnings
from spica_async.evaluate.fleet import Fleet, FleetView, WorkerEvent

SHOW_SECONDS: Final = 0.5
"""Between one view and the next: a thousand workers tell more than anybody can read."""

_EVENTS: Final[dict[str, type[WorkerEvent]]] = {
    WORKER_HEARTBEAT: WorkerHeartbeat,
    WORKER_JOINED: WorkerJoined,
    WORKER_LEFT: WorkerLeft,
    EVALUATION_STARTED: EvaluationStarted,
}


class IgnoredEvent(StrEnum):
    """Why what came as a worker's event was ignored."""

    UNKNOWN_TYPE = "unknown_type"
    MALFORMED = "malformed"


class FleetWatch:
    """Keeps a fleet up to date from a bus.

    Args:
        fleet: what workers say of themselves.
        on_view: takes what there is to show.
        on_held: takes the evaluations that a worker has just said to hold.
    """

    def __init__(
        self,
        fleet: Fleet,
        on_view: Callable[[FleetView], None] | None,
        on_held: Callable[[list[str]], None],
    ) -> None:
        self._fleet = fleet
        self._on_view = on_view
        self._on_held = on_held
        self._changed = asyncio.Event()
        self.ignored = CountedWarnings("coordinator.event_ignored")

    def changed(self) -> None:
        """Something may have changed that is worth showing."""
        self._changed.set()

    async def hear(self, events: AsyncIterator[Event]) -> None:
        """Take events for as long as there are any."""
        now = asyncio.get_running_loop().time
        async for event in events:
            message = event.message
            model = _EVENTS.get(message.type)
            if model is None:
                self.ignored.add(IgnoredEvent.UNKNOWN_TYPE, type=message.type)
                continue
            try:
                told = model.model_validate_json(message.body)
            except ValidationError as error:
                self.ignored.add(IgnoredEvent.MALFORMED, errors=error.error_count())
                continue
            self._fleet.heard(told, now())
            # At once: whoever looks later may find a worker silent.
            if isinstance(told, EvaluationStarted):
                self._on_held([told.data.evaluation_id])
            elif not isinstance(told, WorkerLeft):
                self._on_held(told.data.evaluations)
            self.changed()

    async def show(self, every_seconds: float) -> None:
        """Hand out each view that differs from the last, at a rate that can be followed.

        Workers say nothing when they are gone, so it is looked at `every_seconds` in any case.
        """
        if self._on_view is None:
            return
        now = asyncio.get_running_loop().time
        shown: FleetView | None = None
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(every_seconds):
                    await self._changed.wait()
            self._changed.clear()
            view = self._fleet.view(now())
            if view != shown:
                self._on_view(view)
                shown = view
            await asyncio.sleep(SHOW_SECONDS)
