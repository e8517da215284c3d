"""What a broker refuses, and how soon and in which words the user hears of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import aio_pika
import pytest
from support.broker import VirtualHost, free_port

from spica_async.bus.address import BrokerAddress
from spica_async.bus.port import (
    AccessRefusedError,
    BusUnavailableError,
    Message,
    QueueConflictError,
    QueueSpec,
    QueueStatus,
    UnroutableError,
)
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.rabbitmq.state import BusState

from .conftest import DEAD, WORK, Diary, OpenBus


class TestConnecting:
    async def test_a_wrong_password_is_refused_at_once_and_not_shown(
        self, open_bus: OpenBus, broker_vhost: VirtualHost
    ) -> None:
        url = broker_vhost.url.replace("guest:guest", "guest:hunter2")
        with pytest.raises(AccessRefusedError, match="ACCESS_REFUSED") as refused:
            async with open_bus(url):
                pass
        assert "hunter2" not in str(refused.value)

    async def test_an_unknown_virtual_host_is_refused_at_once(
        self, open_bus: OpenBus, broker_vhost: VirtualHost
    ) -> None:
        with pytest.raises(AccessRefusedError, match="nowhere"):
            async with open_bus(broker_vhost.node.url(vhost="nowhere")):
                pass

    async def test_a_broker_that_is_not_there_is_given_up(
        self, open_bus: OpenBus, diary: Diary
    ) -> None:
        url = f"amqp://guest:guest@127.0.0.1:{free_port()}/"
        with pytest.raises(BusUnavailableError, match=r"no connection in 0\.5 s.*refused"):
            async with open_bus(url, connect_seconds=0.5):
                pass
        assert "refused" in diary.entries[0][1].lower()

    async def test_something_else_on_the_port_is_given_up(self, open_bus: OpenBus) -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await writer.drain()
            writer.close()

        port = free_port()
        async with await asyncio.start_server(greet, "127.0.0.1", port):
            with pytest.raises(BusUnavailableError, match="no connection"):
                async with open_bus(f"amqp://guest:guest@127.0.0.1:{port}/", connect_seconds=1):
                    pass


async def test_a_queue_that_somebody_made_otherwise_is_a_conflict(bus: RabbitBus) -> None:
    with pytest.raises(QueueConflictError, match=r"queue work.*delivery-limit"):
        await bus.declare_queue(QueueSpec("work", 3, "dead"))
    # Others on the same bus are not disturbed.
    await bus.declare_queue(WORK)


async def test_a_reply_queue_whose_name_no_broker_takes_is_unroutable(bus: RabbitBus) -> None:
    for name in ("", "x" * 256):
        with pytest.raises(UnroutableError):
            await bus.publish(name, Message(b"", "a", "test.v1"))


class TestLeastRights:
    async def test_what_exists_is_enough_for_a_user_who_may_declare_nothing(
        self, bus: RabbitBus, open_bus: OpenBus, broker_vhost: VirtualHost
    ) -> None:
        node = broker_vhost.node
        node.add_user(
            "worker",
            "secret",
            vhost=broker_vhost.name,
            configure=r"^spica\.worker\..*",
            write=r"^(amq\.default|spica\..*)$",
            read=r"^(work|spica\..*)$",
        )
        url = node.url(user="worker", password="secret", vhost=broker_vhost.name)
        async with open_bus(url) as worker:
            await worker.publish("work", Message(b"", "a", "test.v1"))
            async with worker.consume("work", prefetch=1) as consumer:
                await (await anext(consumer)).ack()
            async with worker.listen() as words:
                await bus.broadcast(Message(b"", "word", "test.v1"))
                assert (await anext(words)).message_id == "word"
            with pytest.raises(AccessRefusedError, match="queue other does not exist, and"):
                await worker.declare_queue(QueueSpec("other"))
            with pytest.raises(AccessRefusedError, match="dead"):
                async with worker.consume("dead", prefetch=1):
                    pass
            assert await worker.queue_status("dead") == QueueStatus(ready=0, consumers=0)

    async def test_who_may_not_publish_is_told_so(
        self, bus: RabbitBus, open_bus: OpenBus, broker_vhost: VirtualHost
    ) -> None:
        broker_vhost.node.add_user(
            "reader", "secret", vhost=broker_vhost.name, write=r"^spica\..*", read=".*"
        )
        url = broker_vhost.node.url(user="reader", password="secret", vhost=broker_vhost.name)
        async with open_bus(url) as reader:
            with pytest.raises(AccessRefusedError):
                await reader.publish("work", Message(b"", "a", "test.v1"))

    async def test_without_exchanges_a_user_who_may_not_make_them_is_refused(
        self, open_bus: OpenBus, broker_vhost: VirtualHost
    ) -> None:
        broker_vhost.node.add_user("early", "secret", vhost=broker_vhost.name, read=".*")
        url = broker_vhost.node.url(user="early", password="secret", vhost=broker_vhost.name)
        with pytest.raises(AccessRefusedError, match=r"exchange spica\.events does not exist"):
            async with open_bus(url):
                pass


def listed(broker_vhost: VirtualHost, names: str) -> str:
    """The names, an Erlang list of binaries, as one text."""
    return broker_vhost.node.evaluate(f"binary_to_list(iolist_to_binary(lists:join(32, {names})))")


async def test_connections_say_whose_they_are(bus: RabbitBus, broker_vhost: VirtualHost) -> None:
    names = listed(
        broker_vhost,
        "[Value || [{client_properties, Properties}] <-"
        " rabbit_networking:connection_info_all([client_properties]),"
        ' {<<"connection_name">>, _, Value} <- Properties]',
    )
    assert "spica-test (publishing)" in names
    assert "spica-test (consuming)" in names


async def test_private_queues_are_named_after_their_owner_and_go_with_it(
    open_bus: OpenBus, broker_vhost: VirtualHost
) -> None:
    def queues() -> str:
        every = f'rabbit_amqqueue:list(<<"{broker_vhost.name}">>)'
        return listed(broker_vhost, f"[element(4, amqqueue:get_name(Q)) || Q <- {every}]")

    async with open_bus(broker_vhost.url) as bus, bus.subscribe("#"), bus.listen():
        assert "spica.worker.test.events." in queues()
        assert "spica.worker.test.control." in queues()
    async with asyncio.timeout(60):
        while "spica.worker.test" in queues():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
    assert DEAD.name in queues()


class TestExclusiveQueues:
    """Of somebody else's queue the broker tells nothing but that it is locked."""

    @pytest.fixture
    async def locked(self, broker_vhost: VirtualHost) -> AsyncIterator[str]:
        connection = await aio_pika.connect(broker_vhost.url)
        async with connection:
            channel = await connection.channel()
            await channel.declare_queue("locked", exclusive=True)
            yield "locked"

    async def test_every_verb_says_so(self, bus: RabbitBus, locked: str) -> None:
        with pytest.raises(QueueConflictError, match="locked"):
            await bus.queue_status(locked)
        with pytest.raises(QueueConflictError, match="locked"):
            await bus.declare_queue(QueueSpec(locked))
        with pytest.raises(QueueConflictError, match="locked"):
            await bus.delete_queue(locked)
        with pytest.raises(QueueConflictError, match="locked"):
            async with bus.consume(locked, prefetch=1):
                pass
        # The bus is none the worse for it.
        assert (await bus.queue_status("work")).ready == 0

    async def test_a_reader_learns_that_its_queue_came_back_as_somebody_elses(
        self, bus: RabbitBus, broker_vhost: VirtualHost
    ) -> None:
        async with bus.consume("work", prefetch=1) as consumer:
            await bus.delete_queue("work")
            connection = await aio_pika.connect(broker_vhost.url)
            async with connection:
                await asyncio.sleep(0.5)
                await (await connection.channel()).declare_queue("work", exclusive=True)
                with pytest.raises(QueueConflictError, match="work"):
                    async with asyncio.timeout(60):
                        await anext(consumer)


async def use_until_it_fails(bus: RabbitBus) -> None:
    async with asyncio.timeout(60):
        while True:
            # Whichever connection was the first to tell of its end.
            await bus.broadcast(Message(b"", "word", "test.v1"))
            await bus.declare_exchanges()


async def test_a_listener_that_fails_is_heard_of(
    open_bus: OpenBus, broker_vhost: VirtualHost
) -> None:
    """What the user's screen does wrong must not look like a broker that is away."""

    def fail(state: BusState, why: str) -> None:
        if state is BusState.CONNECTING:
            raise OSError("no space left on the screen")

    async with RabbitBus.open(
        BrokerAddress.from_options(broker_vhost.url),
        name="spica-test",
        private_queues="spica.worker.test",
        on_state=fail,
    ) as bus:
        broker_vhost.node.close_connections()
        with pytest.raises(OSError, match="screen"):
            await use_until_it_fails(bus)
