"""Gets requests to the workers' queue, and again if they are lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import structlog

from spica_async.bus.port import (
    AccessRefusedError,
    Bus,
    Message,
    QueueConflictError,
    QueueNotFoundError,
    QueueSpec,
    UnroutableError,
)
from spica_async.bus.topology import DEAD_QUEUE, declare, exists
from spica_async.errors import SpicaError
from spica_async.evaluate.fleet import Fleet
from spica_async.evaluate.lost import LostRequests

_SEND_ATTEMPTS = 10
"""After so many declarations in a row somebody does not want the queue to be there."""
_MENDING_PAUSE_SECONDS = 1.0
_OPERATOR_SECONDS = 2.0
_BLOCKED_SECONDS = 2.0
_OPERATORS_TURN = "`spica-async topology declare` does, with an operator's rights"

log = structlog.get_logger(__name__)


class RequestSender:
    """The requests of one coordinator from their first sending to their end.

    Attributes:
        resent: how many requests were sent again.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        requests: QueueSpec,
        results: QueueSpec,
        fleet: Fleet,
        lost_after_seconds: float,
    ) -> None:
        self.resent = 0
        self._bus = bus
        self._requests = requests
        self._results = results
        self._fleet = fleet
        self._lost = LostRequests(lost_after_seconds)
        self._messages: dict[str, Message] = {}
        self._mending = asyncio.Lock()
        self._unmended: set[str] = set()
        self._stopped = False

    async def declare(self) -> None:
        """Make the queues, or check that they are as we need them.

        Raises:
            SpicaError: they are not, and it takes an operator to change that.
        """
        try:
            await declare(self._bus, self._requests, self._results)
        except QueueConflictError as error:
            raise _conflict(error) from error
        except AccessRefusedError as error:
            raise SpicaError(f"{error}; {_OPERATORS_TURN}") from error

    async def send(self, evaluation_id: str, message: Message) -> None:
        """Publish a request, and look after it until it has ended.

        Raises:
            SpicaError: the queue is deleted as often as it is declared, or cannot be declared.
        """
        self._messages[evaluation_id] = message
        for _ in range(_SEND_ATTEMPTS):
            try:
                await self._bus.publish(self._requests.name, message)
            except UnroutableError:
                while not await self._mend_queues():  # noqa: ASYNC110 - a broker sets no events
                    await asyncio.sleep(_OPERATOR_SECONDS)
            else:
                self._note_sent(evaluation_id)
                return
        raise SpicaError(f"{self._requests.name} is deleted as often as it is declared")

    def adopt(self, evaluation_id: str, message: Message) -> None:
        """Look after a request that an earlier run has sent, as if we had sent it just now."""
        self._messages[evaluation_id] = message
        self._note_sent(evaluation_id)

    def ended(self, evaluation_id: str) -> None:
        """Nobody waits for it any more."""
        self._messages.pop(evaluation_id, None)
        self._lost.ended(evaluation_id)

    def held(self, evaluation_ids: Iterable[str]) -> None:
        """A worker says that it holds these, whosever they are."""
        self._lost.held(self._messages.keys() & evaluation_ids)

    def dropped(self, evaluation_id: str) -> None:
        """The bus has dropped it for reasons that are not its own."""
        self._lost.dropped(evaluation_id)

    def stop(self) -> None:
        """Send nothing again from now on."""
        self._stopped = True

    async def watch(self, every_seconds: float) -> None:
        """Look after the queues, and after what was sent, for good."""
        while True:
            await asyncio.sleep(every_seconds)
            await self._mend_queues()
            await self._find_lost()

    async def _find_lost(self) -> None:
        try:
            status = await self._bus.queue_status(self._requests.name)
        except QueueNotFoundError:
            return  # Deleted a moment ago: the next look finds it missing.
        now = self._now
        await self._send_again(
            self._lost.due(held=self._fleet.held(now), queued=status.ready, now=now)
        )

    async def _mend_queues(self) -> bool:
        """Declare what was deleted, and send again what was lost with it.

        Returns:
            Whether all queues are there; without the right to declare, an operator has to do it.
        """
        # Many requests notice at once, and one of them is enough.
        async with self._mending:
            specs = (DEAD_QUEUE, self._requests, self._results)
            missing = {spec.name for spec in specs if not await exists(self._bus, spec)}
            if not missing | self._unmended:
                return True
            # Before the pause, in which a worker that is slow may seem to be gone.
            self._lost.seen(self._fleet.held(self._now))
            if missing - self._unmended:
                log.warning("coordinator.queues_missing", queues=sorted(missing))
            self._unmended |= missing
            # Consumers must have heard of the deletion before there is a queue of that name again.
            await asyncio.sleep(_MENDING_PAUSE_SECONDS)
            try:
                await declare(self._bus, self._requests, self._results)
            except AccessRefusedError as error:
                self._fleet.obstacle = f"{error}; {_OPERATORS_TURN}"
                return False
            except QueueConflictError as error:
                raise _conflict(error) from error
            self._fleet.obstacle = None
            mended, self._unmended = self._unmended, set()
            if self._requests.name in mended:
                self._lost.seen(self._fleet.held(self._now))
                await self._send_again(self._lost.queue_deleted())
            return True

    async def _send_again(self, evaluation_ids: Iterable[str]) -> None:
        sent = 0
        for evaluation_id in evaluation_ids:
            message = self._messages.get(evaluation_id)
            if self._stopped or message is None:
                continue
            began = self._now
            try:
                await self._bus.publish(self._requests.name, message)
            except UnroutableError:
                break  # As above.
            self._note_sent(evaluation_id)
            sent += 1
            if self._now - began > _BLOCKED_SECONDS:
                # The broker took nothing from anybody: workers could not report what they hold.
                self._lost.look_anew()
                break
        if sent:
            self.resent += sent
            log.warning("coordinator.requests_sent_again", count=sent)

    def _note_sent(self, evaluation_id: str) -> None:
        # Its result may have come before the bus has answered for the request.
        if evaluation_id in self._messages:
            self._lost.sent(evaluation_id, self._now)

    @property
    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _conflict(error: QueueConflictError) -> SpicaError:
    return SpicaError(
        f"a queue exists with other arguments than ours: {error}; it has to be deleted by its owner"
    )
