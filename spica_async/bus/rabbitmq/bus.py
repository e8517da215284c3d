"""The bus port over RabbitMQ: quorum queues for work, one exchange for events, one for control."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, Self, TypeVar
from weakref import WeakValueDictionary

from aio_pika.abc import AbstractChannel

from spica_async.bus.address import BrokerAddress
from spica_async.bus.inbox import MOST_UNREAD, Inbox, Unread
from spica_async.bus.port import (
    AccessRefusedError,
    BusUnavailableError,
    Consumer,
    Event,
    Message,
    QueueConflictError,
    QueueNotFoundError,
    QueueSpec,
    QueueStatus,
    UnroutableError,
    check_size,
)
from spica_async.bus.rabbitmq.channels import ReusedChannel
from spica_async.bus.rabbitmq.consumer import RabbitConsumer
from spica_async.bus.rabbitmq.declaring import EXCHANGES, Spec, declare
from spica_async.bus.rabbitmq.delivery import read_message
from spica_async.bus.rabbitmq.errors import (
    NotFoundError,
    OtherArgumentsError,
    ReturnedError,
    TransientError,
    patience,
    translated,
)
from spica_async.bus.rabbitmq.link import Link, retrying
from spica_async.bus.rabbitmq.state import OnState, StateReport
from spica_async.bus.rabbitmq.subscription import RabbitSubscription
from spica_async.bus.topology import CONTROL_EXCHANGE, EVENTS_EXCHANGE

ResultT = TypeVar("ResultT")

DEFAULT_PATIENCE_SECONDS: Final = 600.0
DEFAULT_CONNECT_SECONDS: Final = 30.0
_SLOW_SECONDS: Final = 3.0
"""After so long without an answer the broker is taken not to want messages."""
_EVENT_SECONDS: Final = 1.0
"""A worker waits no longer for those who listen to events."""
_MOST_NAME_BYTES: Final = 255


class RabbitBus:
    """Implements `spica_async.bus.port.Bus`; made by `open`.

    One connection publishes and another consumes, since a broker that is short of memory stops
    reading from those that publish. Both are made again whenever they are lost.
    """

    def __init__(
        self,
        publishing: Link,
        consuming: Link,
        *,
        private_queues: str,
        report: StateReport,
        patience_seconds: float,
        unread: Unread,
    ) -> None:
        self._unread = unread
        self._consuming = consuming
        self._private_queues = private_queues
        self._report = report
        self._patience_seconds = patience_seconds
        self._publishing = publishing
        self._work = ReusedChannel(publishing, confirms=True)
        self._events = ReusedChannel(publishing, confirms=False, prepare=self.declare_exchanges)
        self._control = ReusedChannel(publishing, confirms=True, prepare=self.declare_exchanges)
        self._admin = ReusedChannel(consuming, confirms=False)
        self._admin_turn = asyncio.Lock()
        self._same_id: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        address: BrokerAddress,
        *,
        name: str,
        private_queues: str,
        on_state: OnState | None = None,
        patience_seconds: float = DEFAULT_PATIENCE_SECONDS,
        connect_seconds: float = DEFAULT_CONNECT_SECONDS,
        unread: Unread = MOST_UNREAD,
    ) -> AsyncIterator[Self]:
        """Connect, and stay connected while the context is open.

        Args:
            address: where the broker is.
            name: of the connections, shown by the broker's own tools.
            private_queues: how the names of queues begin that live as long as this bus.
            on_state: called with every change of the bus's state, and why, in one line.
            patience_seconds: how long a verb waits for a broker that is away or takes nothing.
            connect_seconds: the same for the first connection.
            unread: how much may wait for each who listens.

        Raises:
            AccessRefusedError: the broker refuses the user, the virtual host or an exchange.
            BusUnavailableError: it could not be reached.
        """
        report = StateReport(on_state)

        def link(role: str) -> AbstractAsyncContextManager[Link]:
            return Link.open(
                address, f"{name} ({role})", report.of(role), connect_seconds=connect_seconds
            )

        async with link("publishing") as publishing, link("consuming") as consuming:
            bus = cls(
                publishing,
                consuming,
                private_queues=private_queues,
                report=report,
                patience_seconds=patience_seconds,
                unread=unread,
            )
            await bus.declare_exchanges()
            yield bus

    async def declare_exchanges(self) -> None:
        """Make the exchanges, or check that they exist where this user may not make them.

        Raises:
            AccessRefusedError: one does not exist and this user may not make it.
            QueueConflictError: one is of another kind.
        """
        for exchange in EXCHANGES:
            await self._declare(f"exchange {exchange.name}", exchange)

    async def declare_queue(self, spec: QueueSpec) -> None:
        """See `Bus.declare_queue`.

        A user without the right to do so checks that the queue exists, whatever its arguments.
        """
        if spec.dead_letter_queue is not None:
            await self.queue_status(spec.dead_letter_queue)
        await self._declare(f"queue {spec.name}", spec)

    async def delete_queue(self, queue: str) -> None:
        """See `Bus.delete_queue`."""
        await self._ask(f"deleting queue {queue}", lambda channel: channel.queue_delete(queue))

    async def queue_status(self, queue: str) -> QueueStatus:
        """See `Bus.queue_status`."""

        async def look(channel: AbstractChannel) -> QueueStatus:
            seen = (await channel.declare_queue(queue, passive=True)).declaration_result
            return QueueStatus(seen.message_count or 0, seen.consumer_count or 0)

        try:
            return await self._ask(f"looking for queue {queue}", look)
        except NotFoundError as error:
            raise QueueNotFoundError(f"there is no queue {queue}") from error

    async def publish(self, queue: str, message: Message) -> None:
        """See `Bus.publish`."""
        check_size(message)
        what = f"message {message.message_id}"
        if not 0 < len(queue.encode()) <= _MOST_NAME_BYTES:
            raise UnroutableError(f"{what}: no queue can be called {queue[:40]!r}")

        send = partial(self._work.send, routing_key=queue, persistent=True, mandatory=True)
        try:
            await self._send(message, send, f"publishing {what}")
        except ReturnedError as error:
            raise UnroutableError(f"{what}: there is no queue {queue}") from error

    def consume(self, queue: str, *, prefetch: int) -> AbstractAsyncContextManager[Consumer]:
        """See `Bus.consume`."""
        if prefetch < 1:
            raise ValueError(f"prefetch is {prefetch}, below 1")
        return RabbitConsumer(self._consuming, queue, prefetch).open(self._patience_seconds)

    async def publish_event(self, topic: str, message: Message, *, confirmed: bool = False) -> None:
        """See `Bus.publish_event`; unless it is confirmed, it fails at once when we are cut off."""
        check_size(message)
        if confirmed:
            send = partial(self._control.send, exchange=EVENTS_EXCHANGE, routing_key=topic)
            await self._send(message, partial(send, persistent=True), f"event {topic}")
            return
        if not self._publishing.is_connected:
            raise BusUnavailableError(f"event {topic}: the broker is away")
        try:
            # In its own time: a broker with a thousand newcomers takes seconds, and a channel that
            # is given up while it opens would never be had.
            await self._events.get()
            async with asyncio.timeout(_EVENT_SECONDS):
                await self._events.send(message, exchange=EVENTS_EXCHANGE, routing_key=topic)
        except (TimeoutError, TransientError) as error:
            raise BusUnavailableError(f"event {topic}: the broker takes nothing") from error

    def subscribe(self, pattern: str) -> AbstractAsyncContextManager[Inbox[Event]]:
        """See `Bus.subscribe`."""
        return RabbitSubscription(
            self._consuming,
            exchange=EVENTS_EXCHANGE,
            pattern=pattern,
            queue_prefix=f"{self._private_queues}.events",
            read=lambda incoming: Event(incoming.routing_key or "", read_message(incoming)),
            unread=self._unread,
        ).open(self._patience_seconds)

    async def broadcast(self, message: Message) -> None:
        """See `Bus.broadcast`."""
        check_size(message)
        send = partial(self._control.send, exchange=CONTROL_EXCHANGE)
        await self._send(message, send, f"broadcasting {message.type}")

    def listen(self) -> AbstractAsyncContextManager[Inbox[Message]]:
        """See `Bus.listen`."""
        return RabbitSubscription(
            self._consuming,
            exchange=CONTROL_EXCHANGE,
            queue_prefix=f"{self._private_queues}.control",
            read=read_message,
            unread=self._unread,
        ).open(self._patience_seconds)

    async def _send(
        self, message: Message, send: Callable[[Message], Awaitable[None]], doing: str
    ) -> None:
        # The library knows by their ids alone which messages come back or are confirmed.
        lock = self._same_id.setdefault(message.message_id, asyncio.Lock())
        async with lock:
            await self._persistently(partial(send, message), doing)

    async def _declare(self, what: str, spec: Spec) -> None:
        try:
            await self._ask(f"declaring {what}", partial(declare, spec=spec))
        except AccessRefusedError:
            try:
                await self._ask(f"looking for {what}", partial(declare, spec=spec, passive=True))
            except NotFoundError:
                raise AccessRefusedError(
                    f"{what} does not exist, and this user may not declare it"
                ) from None

    async def _ask(
        self, doing: str, question: Callable[[AbstractChannel], Awaitable[ResultT]]
    ) -> ResultT:
        """Ask the broker something about queues or exchanges.

        Raises:
            NotFoundError: what was asked for does not exist.
            QueueConflictError: it does, and is something else or belongs to somebody alone.
        """

        async def ask() -> ResultT:
            # One at a time: a refusal closes the channel for everything else that waits on it.
            async with self._admin_turn:
                channel = await self._admin.get()
                with translated():
                    return await question(channel)

        try:
            return await self._persistently(ask, doing)
        except OtherArgumentsError as error:
            raise QueueConflictError(f"{doing}: {error}") from error

    async def _persistently(self, attempt: Callable[[], Awaitable[ResultT]], doing: str) -> ResultT:
        async with patience(self._patience_seconds, doing):
            with self._report.slow_after(_SLOW_SECONDS):
                try:
                    # Nearly always enough, and a tenth of the whole verb's time cheaper.
                    return await attempt()
                except TransientError:
                    pass
                result: ResultT = await retrying(TransientError)(attempt)
                return result
