"""A bus inside one process and one event loop, with the semantics of a real broker.

Deliveries are pushed to consumers as a broker does it, so that prefetch, redelivery and dead
letters behave as over a network. It is not safe to use from several threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from spica_async.bus.inbox import MOST_UNREAD, Inbox, Unread
from spica_async.bus.port import (
    Consumer,
    DeadLetter,
    DeadLetterReason,
    Delivery,
    Event,
    Message,
    QueueConflictError,
    QueueNotFoundError,
    QueueSpec,
    QueueStatus,
    Settlement,
    UnroutableError,
    check_size,
)


class MemoryBus:
    """Implements `spica_async.bus.port.Bus`; what it holds is gone with the process.

    Args:
        unread: how much may wait for each who listens.
    """

    def __init__(self, unread: Unread = MOST_UNREAD) -> None:
        self._unread = unread
        self._queues: dict[str, _Queue] = {}
        self._abandoned: dict[str, list[_Consumer]] = {}
        self._subscribers: dict[Inbox[Event], str] = {}
        self._listeners: set[Inbox[Message]] = set()

    async def declare_queue(self, spec: QueueSpec) -> None:
        """See `Bus.declare_queue`."""
        existing = self._queues.get(spec.name)
        if existing is not None:
            if existing.spec != spec:
                raise QueueConflictError(f"declared as {existing.spec}, now as {spec}")
            return
        if spec.dead_letter_queue is not None and spec.dead_letter_queue not in self._queues:
            raise QueueNotFoundError(
                f"{spec.name}: its dead-letter queue {spec.dead_letter_queue} is not declared"
            )
        self._queues[spec.name] = queue = _Queue(spec, self._bury)
        # They have been waiting for a queue of that name since the last one was deleted.
        for consumer in self._abandoned.pop(spec.name, ()):
            queue.attach(consumer)

    async def delete_queue(self, queue: str) -> None:
        """See `Bus.delete_queue`."""
        target = self._queues.pop(queue, None)
        consumers = [] if target is None else target.abandon()
        if consumers:
            self._abandoned[queue] = consumers

    async def queue_status(self, queue: str) -> QueueStatus:
        """See `Bus.queue_status`."""
        return self._existing(queue).status

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
        source = self._existing(queue)
        consumer = _Consumer(source, prefetch)
        source.attach(consumer)
        try:
            yield consumer
        finally:
            if consumer in self._abandoned.get(queue, ()):
                self._abandoned[queue].remove(consumer)
            consumer.queue.close_consumer(consumer)

    async def publish_event(
        self,
        topic: str,
        message: Message,
        *,
        confirmed: bool = False,  # noqa: ARG002  # here each is
    ) -> None:
        """See `Bus.publish_event`."""
        check_size(message)
        event = Event(topic, message)
        for inbox, pattern in self._subscribers.items():
            if _topic_matches(pattern.split("."), topic.split(".")):
                inbox.put(event, len(message.body))

    @asynccontextmanager
    async def subscribe(self, pattern: str) -> AsyncIterator[Inbox[Event]]:
        """See `Bus.subscribe`."""
        inbox = Inbox[Event](self._unread, name=pattern)
        self._subscribers[inbox] = pattern
        try:
            yield inbox
        finally:
            del self._subscribers[inbox]
            inbox.close()

    async def broadcast(self, message: Message) -> None:
        """See `Bus.broadcast`."""
        check_size(message)
        for inbox in self._listeners:
            inbox.put(message, len(message.body))

    @asynccontextmanager
    async def listen(self) -> AsyncIterator[Inbox[Message]]:
        """See `Bus.listen`."""
        inbox = Inbox[Message](self._unread, name="broadcasts")
        self._listeners.add(inbox)
        try:
            yield inbox
        finally:
            self._listeners.remove(inbox)
            inbox.close()

    def let_die(self, queue: str, message: Message, reason: DeadLetterReason) -> None:
        """Have a message die in a queue, as by the policy of a broker's operator."""
        self._existing(queue).dead_letter(_Entry(message), reason)

    def _bury(self, spec: QueueSpec, entry: _Entry) -> None:
        """Put a dead entry where its queue says; as a broker does, drop it when that is nowhere."""
        target = self._queues.get(spec.dead_letter_queue or "")
        if target is not None:
            target.put(entry)

    def _existing(self, queue: str) -> _Queue:
        try:
            return self._queues[queue]
        except KeyError:
            raise QueueNotFoundError(f"there is no queue {queue}") from None


@dataclass(slots=True)
class _Entry:
    """A message in a queue, with what the queue knows of it."""

    message: Message
    delivery_count: int = 0
    dead_letter: DeadLetter | None = None


class _Queue:
    """Two lines, those that came back first, and the consumers with room, in turn."""

    def __init__(self, spec: QueueSpec, bury: Callable[[QueueSpec, _Entry], None]) -> None:
        self.spec = spec
        self._bury = bury
        self._returned: deque[_Entry] = deque()
        self._ready: deque[_Entry] = deque()
        self._consumers: list[_Consumer] = []
        self._with_room: deque[_Consumer] = deque()

    @property
    def status(self) -> QueueStatus:
        return QueueStatus(len(self._returned) + len(self._ready), len(self._consumers))

    def put(self, entry: _Entry) -> None:
        self._ready.append(entry)
        self._hand_out()

    def attach(self, consumer: _Consumer) -> None:
        consumer.queue = self
        if consumer.has_room:
            self._consumers.append(consumer)
            self._with_room.append(consumer)
            self._hand_out()

    def abandon(self) -> list[_Consumer]:
        """Drop everything; returns the consumers, which would go on taking."""
        self._returned.clear()
        self._ready.clear()
        self._with_room.clear()
        abandoned, self._consumers = self._consumers, []
        for consumer in abandoned:
            consumer.drop()
        return abandoned

    def stop_consumer(self, consumer: _Consumer) -> None:
        self._lose(consumer, self._stop_taking(consumer))

    def close_consumer(self, consumer: _Consumer) -> None:
        self._stop_taking(consumer)
        self._lose(consumer, list(consumer.unsettled))

    def settle(
        self, consumer: _Consumer, delivery: _MemoryDelivery, settlement: Settlement
    ) -> None:
        had_room = consumer.has_room
        consumer.unsettled.remove(delivery)
        if consumer.has_room and not had_room:
            self._with_room.append(consumer)
        if settlement is Settlement.RETURNED:
            self._take_back([delivery.entry])
        elif settlement is Settlement.REJECTED:
            self.dead_letter(delivery.entry, DeadLetterReason.REJECTED)
        self._hand_out()

    def _stop_taking(self, consumer: _Consumer) -> list[_MemoryDelivery]:
        if consumer in self._consumers:
            self._consumers.remove(consumer)
        if consumer in self._with_room:
            self._with_room.remove(consumer)
        return consumer.stop_taking()

    def _lose(self, consumer: _Consumer, deliveries: Sequence[_MemoryDelivery]) -> None:
        for delivery in deliveries:
            delivery.is_lost = True
            consumer.unsettled.remove(delivery)
        self._take_back([delivery.entry for delivery in deliveries])
        self._hand_out()

    def _take_back(self, entries: Iterable[_Entry]) -> None:
        limit = self.spec.delivery_limit
        for entry in entries:
            entry.delivery_count += 1
            if limit is not None and entry.delivery_count > limit:
                self.dead_letter(entry, DeadLetterReason.DELIVERY_LIMIT)
            else:
                self._returned.append(entry)

    def dead_letter(self, entry: _Entry, reason: DeadLetterReason) -> None:
        letter = DeadLetter(self.spec.name, reason)
        self._bury(self.spec, _Entry(entry.message, dead_letter=letter))

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
        self._inbox: Inbox[_MemoryDelivery] = Inbox()
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

    def drop(self) -> None:
        """Lose what is held or unread, since the queue is gone."""
        self._inbox.clear()
        for delivery in self.unsettled:
            delivery.is_lost = True
        self.unsettled.clear()


class _MemoryDelivery(Delivery):
    is_lost = False

    def __init__(self, entry: _Entry, consumer: _Consumer) -> None:
        super().__init__(
            entry.message,
            consumer.queue.spec.name,
            delivery_count=entry.delivery_count,
            dead_letter=entry.dead_letter,
        )
        self.entry = entry
        self._consumer = consumer

    async def _carry_out(self, settlement: Settlement) -> None:
        self._consumer.queue.settle(self._consumer, self, settlement)


def _topic_matches(pattern: Sequence[str], topic: Sequence[str]) -> bool:
    """Match words by AMQP's rules: `*` stands for one word, `#` for any number, none included."""
    if not pattern:
        return not topic
    head, rest = pattern[0], pattern[1:]
    if head == "#":
        return any(_topic_matches(rest, topic[skipped:]) for skipped in range(len(topic) + 1))
    return bool(topic) and head in ("*", topic[0]) and _topic_matches(rest, topic[1:])
