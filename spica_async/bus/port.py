"""What coordinator and workers may expect of a bus, whatever carries it.

Queues hold work: each message goes to one consumer, stays unacknowledged until that consumer
settles it, and comes back when it does not. Events reach all who listen at the moment. The words
and the fine print follow RabbitMQ's quorum queues, so that a broker can stand behind this port.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any, Protocol, Self

from schemas.envelope import MAX_MESSAGE_BYTES, Envelope
from spica_async.bus.inbox import Inbox
from spica_async.errors import SpicaError


class BusError(SpicaError):
    """Something that the bus refused or could not do."""


class UnroutableError(BusError):
    """The message was not taken: the queue that it was published to does not exist."""


class QueueNotFoundError(BusError):
    """The queue to be consumed, or the dead-letter queue of a new queue, does not exist."""


class QueueConflictError(BusError):
    """A queue of that name exists with other arguments."""


class MessageTooLargeError(BusError):
    """The body is longer than `MAX_MESSAGE_BYTES`."""


class DeliveryLostError(BusError):
    """The delivery was given back before it was settled; the message is delivered again."""


class AlreadySettledError(BusError):
    """The delivery was settled before, and otherwise: acked against nacked."""


class BusUnavailableError(BusError):
    """The bus could not be reached, or did not answer, in the time that it is given."""


class AccessRefusedError(BusError):
    """The bus knows this user, or does not, and refuses what was asked."""


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A durable queue.

    A message that comes back more than `delivery_limit` times (none: no limit) goes to
    `dead_letter_queue`, as does one that is rejected. Without a dead-letter queue a rejected
    message is dropped; a limit without one is refused, since it would lose messages unseen.

    A queue that nobody has consumed for `expires_seconds` (none: never) may be deleted with what
    it holds.

    Raises:
        ValueError: the limit is negative or lacks a dead-letter queue, the queue would be its
            own dead-letter queue, or would expire at once.
    """

    name: str
    delivery_limit: int | None = None
    dead_letter_queue: str | None = None
    expires_seconds: int | None = None

    def __post_init__(self) -> None:
        if self.delivery_limit is not None:
            if self.delivery_limit < 0:
                raise ValueError(f"{self.name}: delivery_limit is {self.delivery_limit}, below 0")
            if self.dead_letter_queue is None:
                raise ValueError(f"{self.name}: a delivery limit needs a dead-letter queue")
        if self.dead_letter_queue == self.name:
            raise ValueError(f"{self.name}: a queue cannot be its own dead-letter queue")
        if self.expires_seconds is not None and self.expires_seconds < 1:
            raise ValueError(f"{self.name}: expires_seconds is {self.expires_seconds}, below 1")


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """What a queue holds and who reads it, at the moment of asking.

    `ready` counts the messages that wait for a consumer, without those that one holds.
    """

    ready: int
    consumers: int


@dataclass(frozen=True, slots=True)
class Message:
    """A body of bytes and what a consumer must know before it reads them.

    `message_id` stays the same when a publish is repeated; `type` names the body's schema and its
    version; `reply_to` is the queue in which the sender awaits an answer.
    """

    body: bytes
    message_id: str
    type: str
    reply_to: str | None = None

    @classmethod
    def of(cls, envelope: Envelope[Any], reply_to: str | None = None) -> Self:
        """The message that carries an envelope."""
        return cls(envelope.model_dump_json().encode(), envelope.id, envelope.type, reply_to)


@dataclass(frozen=True, slots=True)
class Event:
    """A message together with the topic under which it was published."""

    topic: str
    message: Message


class DeadLetterReason(StrEnum):
    """Why a message ended in a dead-letter queue."""

    REJECTED = "rejected"
    """A consumer settled it with `nack(requeue=False)`."""
    DELIVERY_LIMIT = "delivery_limit"
    """It came back more often than its queue allows."""
    EXPIRED = "expired"
    """It waited longer than an operator's policy allows."""
    MAXLEN = "maxlen"
    """The queue was longer than an operator's policy allows."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """In which queue a message died, and why."""

    queue: str
    reason: DeadLetterReason


class Settlement(Enum):
    """What becomes of a delivery."""

    ACKED = auto()
    """It is done with."""
    RETURNED = auto()
    """It goes back to its queue."""
    REJECTED = auto()
    """It goes to the queue's dead letters."""


class Delivery(ABC):
    """A message handed to one consumer, and the duty to settle it once.

    Args:
        message: what was published.
        queue: the name of the queue that it came from.
        delivery_count: how often the message came back from a consumer before: 0 the first time.
        dead_letter: where the message died, when it is taken from a dead-letter queue.
    """

    def __init__(
        self,
        message: Message,
        queue: str,
        *,
        delivery_count: int = 0,
        dead_letter: DeadLetter | None = None,
    ) -> None:
        self.message = message
        self.delivery_count = delivery_count
        self.dead_letter = dead_letter
        self._shown = f"message {message.message_id} of {queue}"
        self._settlement: Settlement | None = None

    @property
    @abstractmethod
    def is_lost(self) -> bool:
        """Whether its consumer or its queue is gone, so that it is delivered again."""

    async def ack(self) -> None:
        """Settle the message as done with; see `settle`."""
        await self.settle(Settlement.ACKED)

    async def nack(self, *, requeue: bool) -> None:
        """Give the message back to its queue, or dead-letter it; see `settle`."""
        await self.settle(Settlement.RETURNED if requeue else Settlement.REJECTED)

    async def settle(self, settlement: Settlement) -> None:
        """Settle the message. Doing so again in the same way has no effect.

        Raises:
            DeliveryLostError: the consumer was closed or lost meanwhile; redelivery follows.
            AlreadySettledError: the delivery was settled in another way.
        """
        if self._settlement is settlement:
            return
        if self._settlement is not None:
            raise AlreadySettledError(f"{self._shown}: {self._settlement.name.lower()} before")
        if self.is_lost:
            raise DeliveryLostError(f"{self._shown}: its consumer or its queue was lost")
        await self._carry_out(settlement)
        self._settlement = settlement

    @abstractmethod
    async def _carry_out(self, settlement: Settlement) -> None:
        """Settle it with the bus.

        Raises:
            DeliveryLostError: it was lost meanwhile.
        """


class Consumer(Protocol):
    """An async iterator of deliveries, which ends when the consumer is stopped or closed.

    Several tasks may wait for the next delivery, which goes to one of them; a wait may be
    cancelled and loses none.
    """

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """The consumer itself."""

    async def __anext__(self) -> Delivery:
        """Wait for the next delivery."""

    async def stop(self) -> None:
        """Take nothing more and give back what was not read; what was read can still be settled."""


class Bus(Protocol):
    """Work queues with acknowledgements, events by topic, and broadcasts.

    Any verb may raise `BusUnavailableError` and `AccessRefusedError`.
    """

    async def declare_queue(self, spec: QueueSpec) -> None:
        """Make the queue, or check that it exists just so.

        Raises:
            QueueConflictError: it exists with other arguments.
            QueueNotFoundError: its dead-letter queue was not declared before it.
        """

    async def delete_queue(self, queue: str) -> None:
        """Delete the queue with what it holds, if it exists; its consumers wait for its return."""

    async def queue_status(self, queue: str) -> QueueStatus:
        """Look up what the queue holds.

        Raises:
            QueueNotFoundError: there is no such queue.
            QueueConflictError: it belongs to somebody alone.
        """

    async def publish(self, queue: str, message: Message) -> None:
        """Put a message at the end of a queue; returns once the bus answers for it.

        Raises:
            UnroutableError: there is no such queue.
            MessageTooLargeError: see `MAX_MESSAGE_BYTES`.
        """

    def consume(self, queue: str, *, prefetch: int) -> AbstractAsyncContextManager[Consumer]:
        """Take messages from a queue while the context is open.

        Consumers of one queue are served in turn, each with at most `prefetch` unsettled
        deliveries, those included that wait to be read from the iterator. Messages that came back
        are handed out first, in the order in which they came back, then the others in the order of
        publishing.

        Closing gives unsettled deliveries back, in the order of their delivery. Each way of coming
        back, a `nack(requeue=True)` or the closing or loss of the consumer, counts as one delivery
        against the queue's limit.

        A consumer outlives the loss of its connection, and that of its queue: it loses what it
        holds and goes on when there is a connection, and a queue of that name, again. Who deletes
        a queue should let a second pass before it is declared anew: consumers hear of it late.

        Raises:
            QueueNotFoundError: there is no such queue (on entry).
            ValueError: `prefetch` is below 1 (on entry).
        """

    async def publish_event(self, topic: str, message: Message, *, confirmed: bool = False) -> None:
        """Send an event to all who subscribe at this moment, of whom there may be none.

        `topic` is words joined by dots. An event that is `confirmed` waits for the bus as a
        published message does, and is in the queues of those who keep one when this returns.

        Raises:
            MessageTooLargeError: see `MAX_MESSAGE_BYTES`.
        """

    def subscribe(self, pattern: str) -> AbstractAsyncContextManager[Inbox[Event]]:
        """Receive every event published while the context is open, in order, and read in time.

        Of what a reader does not take in time the oldest is dropped: see `inbox.MOST_UNREAD`.

        In `pattern`, `*` stands for exactly one word and `#` for any number of words, none
        included. The iteration ends when the context is closed. What is published while a
        connection is lost is missed.
        """

    async def broadcast(self, message: Message) -> None:
        """Send a message to all who listen at this moment, of whom there may be none.

        Raises:
            MessageTooLargeError: see `MAX_MESSAGE_BYTES`.
        """

    def listen(self) -> AbstractAsyncContextManager[Inbox[Message]]:
        """Receive every broadcast while the context is open, as `subscribe` does events."""


def check_size(message: Message) -> None:
    """Refuse a message that no implementation may carry.

    Raises:
        MessageTooLargeError: the body has more than `MAX_MESSAGE_BYTES`.
    """
    size = len(message.body)
    if size > MAX_MESSAGE_BYTES:
        raise MessageTooLargeError(
            f"message {message.message_id} ({message.type}) has {size} bytes;"
            f" at most {MAX_MESSAGE_BYTES} are carried"
        )
