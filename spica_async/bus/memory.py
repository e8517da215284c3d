"""A bus inside one process and one event loop, with the semantics of a real broker.

Deliveries are pushed to consumers as a broker does it, so that prefetch, redelivery and dead
letters behave as over a network. It is not safe to use from several threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from spica_async.bus.port import (
    AlreadySettledError,
    Consumer,
    DeadLetter,
    DeadLetterReason,
    Delivery,
    DeliveryLostError,
    Event,
    Message,
    QueueConflictError,
    QueueNotFoundError,
    QueueSpec,
    UnroutableError,
    check_size,
)
from spica_async.bus.topics import topic_matches

ItemT = TypeVar("ItemT")


class MemoryBus:
    """Implements `spica_async.bus.port.Bus`; what it holds is gone with the process."""

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}
        self._subscribers: dict[_Inbox[Event], str] = {}

    async def declare_queue(self, spec: QueueSpec) -> None:
        """See `Bus.declare_queue`."""
        existing = self._queues.get(spec.name)
        if existing is not None:
            if existing.spec != spec:
                raise QueueConflictError(f"declared as {existing.spec}, now as {spec}")
            return
        bury: Callable[[_Entry], None] = _drop
        if spec.dead_letter_queue is not None:
            dead_letter_queue = self._queues.get(spec.dead_letter_queue)
            if dead_letter_queue is None:
                raise QueueNotFoundError(
                    f"{spec.name}: its dead-letter queue {spec.dead_letter_queue} is not declared"
                )
            bury = dead_letter_queue.put
        self._queues[spec.name] = _Queue(spec, bury)

    async def publish(self, queue: str, message: Message) -> None:
        """See `Bus.publish`."""
        check_size(message)
        target = self._queues.get(queue)
        if target is None:
            raise UnroutableError(f"message {message.message_id}: no queue {queue}")
        target.put(_Entry(message))

    @asynccontextmanager
    async def consume(self, queue: str, *, prefetch: int) -> AsyncIterator[Consumer]:
        """See `Bus.consume`."""
        if prefetch < 1:
            raise ValueError(f"prefetch is {prefetch}, below 1")
        source = self._queues.get(queue)
        if source is None:
            raise QueueNotFoundError(f"no queue {queue} to consume")
        consumer = _Consumer(source, prefetch)
        source.attach(consumer)
        try:
            yield consumer
        finally:
            source.close_consumer(consumer)

    async def publish_event(self, topic: str, message: Message) -> None:
        """See `Bus.publish_event`."""
        check_size(message)
        event = Event(topic, message)
        for inbox, pattern in self._subscribers.items():
            if topic_matches(pattern, topic):
                inbox.put(event)

    @asynccontextmanager
    async def subscribe(self, pattern: str) -> AsyncIterator[AsyncIterator[Event]]:
        """See `Bus.subscribe`."""
        inbox = _Inbox[Event]()
        self._subscribers[inbox] = pattern
        try:
            yield inbox
        finally:
            del self._subscribers[inbox]
            inbox.close()


class _Inbox(Generic[ItemT]):
    """What was pushed and not read yet; iterates until it is closed."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[ItemT | None] = asyncio.Queue()

    def __aiter__(self) -> _Inbox[ItemT]:
        return self

    async def __anext__(self) -> ItemT:
        item = await self._items.get()
        if item is None:
            # Left in place for others who wait and for whoever asks again.
            self._items.put_nowait(None)
            raise StopAsyncIteration
        return item

    def put(self, item: ItemT) -> None:
        self._items.put_nowait(item)

    def close(self) -> list[ItemT]:
        """End the iteration at once; returns what was not read."""
        unread: list[ItemT] = []
        while not self._items.empty():
            item = self._items.get_nowait()
            if item is not None:
                unread.append(item)
        self._items.put_nowait(None)
        return unread


@dataclass(slots=True)
class _Entry:
    """A message in a queue, with what the queue knows of it."""

    message: Message
    delivery_count: int = 0
    dead_letter: DeadLetter | None = None


def _drop(_entry: _Entry) -> None:
    """What becomes of a rejected message in a queue without a dead-letter queue."""


class _Queue:
    """Two lines, those that came back first, and the consumers with room, in turn."""

    def __init__(self, spec: QueueSpec, bury: Callable[[_Entry], None]) -> None:
        self.spec = spec
        self._bury = bury
        self._returned: deque[_Entry] = deque()
        self._ready: deque[_Entry] = deque()
        self._with_room: deque[_Consumer] = deque()

    def put(self, entry: _Entry) -> None:
        self._ready.append(entry)
        self._hand_out()

    def attach(self, consumer: _Consumer) -> None:
        self._with_room.append(consumer)
        self._hand_out()

    def stop_consumer(self, consumer: _Consumer) -> None:
        self._lose(consumer, self._stop_taking(consumer))

    def close_consumer(self, consumer: _Consumer) -> None:
        self._stop_taking(consumer)
        self._lose(consumer, list(consumer.unsettled))

    def settle(self, delivery: _MemoryDelivery, state: _State) -> None:
        consumer = delivery.consumer
        had_room = consumer.has_room
        consumer.unsettled.remove(delivery)
        if consumer.has_room and not had_room:
            self._with_room.append(consumer)
        if state is _State.RETURNED:
            self._take_back([delivery.entry])
        elif state is _State.REJECTED:
            self._dead_letter(delivery.entry, DeadLetterReason.REJECTED)
        self._hand_out()

    def _stop_taking(self, consumer: _Consumer) -> list[_MemoryDelivery]:
        if consumer.has_room:
            self._with_room.remove(consumer)
        return consumer.stop_taking()

    def _lose(self, consumer: _Consumer, deliveries: Sequence[_MemoryDelivery]) -> None:
        for delivery in deliveries:
            delivery.state = _State.LOST
            consumer.unsettled.remove(delivery)
        self._take_back([delivery.entry for delivery in deliveries])
        self._hand_out()

    def _take_back(self, entries: Iterable[_Entry]) -> None:
        limit = self.spec.delivery_limit
        for entry in entries:
            entry.delivery_count += 1
            if limit is not None and entry.delivery_count > limit:
                self._dead_letter(entry, DeadLetterReason.DELIVERY_LIMIT)
            else:
                self._returned.append(entry)

    def _dead_letter(self, entry: _Entry, reason: DeadLetterReason) -> None:
        # A returned entry has counted its last delivery already, a rejected one has not.
        rejected = reason is DeadLetterReason.REJECTED
        count = entry.delivery_count + (1 if rejected else 0)
        self._bury(_Entry(entry.message, dead_letter=DeadLetter(self.spec.name, reason, count)))

    def _hand_out(self) -> None:
        while self._with_room and (self._returned or self._ready):
            consumer = self._with_room.popleft()
            line = self._returned or self._ready
            consumer.push(line.popleft())
            if consumer.has_room:
                self._with_room.append(consumer)


class _Consumer:
    """One consumer of one queue: what it holds, in the order of delivery."""

    def __init__(self, queue: _Queue, prefetch: int) -> None:
        self.queue = queue
        self.unsettled: list[_MemoryDelivery] = []
        self._inbox: _Inbox[_MemoryDelivery] = _Inbox()
        self._prefetch = prefetch
        self._taking = True

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self

    async def __anext__(self) -> Delivery:
        return await anext(self._inbox)

    async def stop(self) -> None:
        self.queue.stop_consumer(self)

    @property
    def has_room(self) -> bool:
        return self._taking and len(self.unsettled) < self._prefetch

    def push(self, entry: _Entry) -> None:
        delivery = _MemoryDelivery(entry, self)
        self.unsettled.append(delivery)
        self._inbox.put(delivery)

    def stop_taking(self) -> list[_MemoryDelivery]:
        self._taking = False
        return self._inbox.close()


class _State(Enum):
    """The life of a delivery: from unsettled to one of the others, once."""

    UNSETTLED = auto()
    ACKED = auto()
    RETURNED = auto()
    REJECTED = auto()
    LOST = auto()


class _MemoryDelivery:
    def __init__(self, entry: _Entry, consumer: _Consumer) -> None:
        self.entry = entry
        self.consumer = consumer
        self.state = _State.UNSETTLED
        self._delivery_count = entry.delivery_count

    @property
    def message(self) -> Message:
        return self.entry.message

    @property
    def delivery_count(self) -> int:
        return self._delivery_count

    @property
    def dead_letter(self) -> DeadLetter | None:
        return self.entry.dead_letter

    async def ack(self) -> None:
        self._settle(_State.ACKED)

    async def nack(self, *, requeue: bool) -> None:
        self._settle(_State.RETURNED if requeue else _State.REJECTED)

    def _settle(self, state: _State) -> None:
        if self.state is state:
            return
        message = f"message {self.message.message_id} of {self.consumer.queue.spec.name}"
        if self.state is _State.LOST:
            raise DeliveryLostError(f"{message}: its consumer was closed; it is delivered again")
        if self.state is not _State.UNSETTLED:
            raise AlreadySettledError(f"{message}: {self.state.name.lower()} before")
        self.state = state
        self.consumer.queue.settle(self, state)
