"""Server-sent events: what happens to sweeps, for as long as somebody listens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from http import HTTPStatus
from typing import Annotated, Any, Final

import structlog
from fastapi import APIRouter, Depends, Header, Query
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.exceptions import HTTPException

from schemas.lifecycle import SWEEP_EVENT, SweepEvent
from spica_async.errors import SpicaError
from spica_async.service.http.problems import LATER, describe_problems
from spica_async.service.port import MAX_NUMBER, Control, Events, UnreadableEvent

log = structlog.get_logger(__name__)

_EVENTS: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "`data` of each is a SweepEvent",
        "content": {
            "text/event-stream": {"itemSchema": {"$ref": "#/components/schemas/SweepEvent"}},
        },
    }
}
_NO_MORE: Final[dict[int | str, dict[str, Any]]] = {
    204: {"description": "the sweep has ended, and there is no event behind that one"}
}
_After = Annotated[
    int, Query(ge=0, le=MAX_NUMBER, description="number of the last event that is known")
]
_LastEventId = Annotated[
    int | None,
    Header(ge=0, le=MAX_NUMBER, alias="Last-Event-ID", description="likewise, and goes before it"),
]


class NoMoreEventsError(Exception):
    """A sweep has ended, and all of its events are known; answered 204."""


class Streams:
    """The event streams of one application.

    Args:
        most: streams that may be open at a time.
        stop: ends all of them when it is set.

    Attributes:
        open: streams that are open now.
    """

    def __init__(self, most: int, stop: asyncio.Event) -> None:
        self._most = most
        self._stop = stop
        self.open = 0

    async def one(self) -> AsyncIterator[AsyncExitStack]:
        """Count one more stream until its request has been answered; yields what then closes.

        Raises:
            HTTPException: there are as many as may be, or they are ending.
        """
        problem = None
        if self._stop.is_set():
            problem = "the daemon is being stopped"
        elif self.open >= self._most:
            problem = f"{self._most} event streams are open, which is as many as may be"
        if problem is not None:
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, problem, LATER)
        self.open += 1
        try:
            async with AsyncExitStack() as closing:
                yield closing
        finally:
            self.open -= 1

    async def until_stopped(self, events: Events) -> Events:
        """The events up to their end, to a failure of the journal, or to the stop."""
        stopped = asyncio.create_task(self._stop.wait())
        following = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                await asyncio.wait({following, stopped}, return_when=asyncio.FIRST_COMPLETED)
                event = following.result() if following.done() else None
                if event is None:
                    return
                yield event
                following = asyncio.ensure_future(anext(events, None))
        except SpicaError as error:
            # Too late for another answer; a client that comes again gets one.
            log.warning("http.stream_failed", why=str(error))
        finally:
            stopped.cancel()
            if not following.cancel():
                await events.aclose()


def add_events(router: APIRouter, control: Control, streams: Streams) -> None:
    """Add the routes of event streams.

    Args:
        router: the router to add them to.
        control: the daemon's verbs.
        streams: counts the streams, and ends them.
    """

    async def more_events(
        sweep_id: str, after: _After = 0, last_event_id: _LastEventId = None
    ) -> int:
        """The number of the event from which a stream goes on, which has others behind it."""
        number = after if last_event_id is None else last_event_id
        # Once a stream has begun, it cannot be answered with a 404 or 204 any more. The latter has
        # an `EventSource` come no more.
        if not await control.has_more_events(sweep_id, after=number):
            raise NoMoreEventsError
        return number

    @router.get(
        "/v1/sweeps/{sweep_id}/events",
        response_class=EventSourceResponse,
        responses=_EVENTS | _NO_MORE | describe_problems(404, 422, 503),
    )
    async def sweep_events(
        sweep_id: str,
        number: Annotated[int, Depends(more_events)],
        closing: Annotated[AsyncExitStack, Depends(streams.one)],
    ) -> AsyncIterator[ServerSentEvent]:
        """What happens to one sweep, from an event on until it ends."""
        events = streams.until_stopped(control.events(sweep_id, after=number))
        # FastAPI leaves a route where it is when its client goes.
        closing.push_async_callback(events.aclose)
        async for event in events:
            yield _sent(event, numbered=True)

    @router.get(
        "/v1/events",
        response_class=EventSourceResponse,
        responses=_EVENTS | describe_problems(503),
    )
    async def events_of_all(
        closing: Annotated[AsyncExitStack, Depends(streams.one)],
    ) -> AsyncIterator[ServerSentEvent]:
        """What happens to all sweeps, from now on."""
        events = streams.until_stopped(control.events(None))
        closing.push_async_callback(events.aclose)
        async for event in events:
            # Numbers are within a sweep, so here they are no place to go on from.
            yield _sent(event, numbered=False)


def _sent(event: SweepEvent | UnreadableEvent, *, numbered: bool) -> ServerSentEvent:
    if isinstance(event, UnreadableEvent):
        # Without data it is no event to the client, who goes on behind it all the same.
        number = str(event.number) if numbered else None
        return ServerSentEvent(comment=str(event), id=number)
    return ServerSentEvent(
        raw_data=SWEEP_EVENT.dump_json(event).decode(),
        event=event.data.kind,
        id=str(event.sequence) if numbered else None,
    )
