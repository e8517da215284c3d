"""One slot at work: its own consumer, open while its child is warm, one request at a time.

With one unsettled request per consumer, a worker that dies takes down the delivery count of what
it was evaluating and of nothing that waits.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from spica_async.bus.port import (
    BusError,
    BusUnavailableError,
    Consumer,
    Delivery,
    DeliveryLostError,
    QueueNotFoundError,
    Settlement,
)
from workers.handling import Handled, Handler, Shared
from workers.port import ChildStartError, EvaluationSlot

_QUEUE_PAUSE_SECONDS = 1.0


class SlotServer:
    """Takes requests for one slot until the worker stops; the request in hand is then finished.

    Args:
        slot: Evaluates.
        shared: What the worker's slots share.
        handler: Answers requests.
        pause_seconds: How long the slot takes nothing after it could not evaluate a request.
    """

    def __init__(
        self, slot: EvaluationSlot, shared: Shared, handler: Handler, pause_seconds: float
    ) -> None:
        self.slot = slot
        self.is_busy = False
        """Whether a request is in hand, which a stop lets go on for a while."""
        self._shared = shared
        self._presence = shared.presence
        self._warnings = shared.warnings
        self._handler = handler
        self._pause_seconds = pause_seconds

    async def run(self) -> None:
        """Serve; to cancel it kills what the slot runs and gives its request back.

        Raises:
            ChildStartError: the slot cannot evaluate any more; what it held is given back.
            AccessRefusedError: the queue may not be read.
        """
        while not self._shared.stopping.is_set():
            await self.slot.start()
            async with AsyncExitStack() as closing:
                consumer = await self._open_consumer(closing)
                self._presence.slot_ready(self.slot.index)
                trouble = await self._serve(consumer)
            if trouble is not None and not self._shared.stopping.is_set():
                self._presence.slot_troubled(self.slot.index, trouble)
                await asyncio.sleep(self._pause_seconds)

    async def _open_consumer(self, closing: AsyncExitStack) -> Consumer:
        while True:
            try:
                return await closing.enter_async_context(
                    self._shared.bus.consume(self._shared.queue, prefetch=1)
                )
            except (QueueNotFoundError, BusUnavailableError) as error:
                # It was there when the worker started; a consumer that is open waits, too.
                self._warnings.add("queue_unavailable", error=str(error))
                self._presence.slot_troubled(self.slot.index, str(error))
            await asyncio.sleep(_QUEUE_PAUSE_SECONDS)

    async def _serve(self, consumer: Consumer) -> str | None:
        """Handle requests for as long as the slot can; returns what kept it from going on."""
        try:
            async for delivery in consumer:
                self.is_busy = True
                try:
                    handled = await self._handle(consumer, delivery)
                finally:
                    self.is_busy = False
                if self._has_to_close(handled):
                    return handled.trouble
        except BaseException:
            # Before the request is given back: nobody else is to run what still runs here.
            self.slot.kill()
            raise
        return None

    async def _handle(self, consumer: Consumer, delivery: Delivery) -> Handled:
        try:
            handled = await self._handler.handle(self.slot, delivery)
        except ChildStartError:
            await self._stop(consumer)
            await self._settle(delivery, Settlement.RETURNED)
            raise
        if self._has_to_close(handled):
            # Before it settles: the bus would hand out the next request in return.
            await self._stop(consumer)
        await self._settle(delivery, handled.settlement)
        return handled

    def _has_to_close(self, handled: Handled) -> bool:
        return (
            self._shared.stopping.is_set() or not self.slot.is_warm or handled.trouble is not None
        )

    async def _stop(self, consumer: Consumer) -> None:
        try:
            await consumer.stop()
        except BusError as error:
            self._warnings.add("consumer_lost", error=str(error))

    async def _settle(self, delivery: Delivery, settlement: Settlement) -> None:
        try:
            await delivery.settle(settlement)
        except (DeliveryLostError, BusUnavailableError) as error:
            # It comes again, and is answered by what is known of it then.
            self._warnings.add("delivery_lost", error=str(error))
