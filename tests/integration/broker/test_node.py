"""The private node and the proxy before it do what the fault tests rely on."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
import psutil
import pytest
from aio_pika.abc import AbstractChannel
from aio_pika.exceptions import AMQPError
from aiormq.exceptions import ChannelAccessRefused, ChannelInvalidStateError
from support.broker import BrokerError, BrokerNode, VirtualHost, free_port
from support.proxy import Method, Side, TcpProxy, tcp_proxy

LOST = (AMQPError, ChannelInvalidStateError, ConnectionError, asyncio.CancelledError)
"""What aio-pika raises where a connection is cut, depending on what it was doing."""


@asynccontextmanager
async def channel_at(url: str, name: str = "test") -> AsyncIterator[AbstractChannel]:
    connection = await aio_pika.connect(url, client_properties={"connection_name": name})
    try:
        yield await connection.channel(publisher_confirms=True, on_return_raises=True)
    finally:
        await connection.close()


async def put(channel: AbstractChannel, body: bytes, queue: str = "work") -> None:
    message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    await channel.default_exchange.publish(message, queue)


async def declare(channel: AbstractChannel) -> None:
    await channel.declare_queue("work", durable=True, arguments={"x-queue-type": "quorum"})


async def take_all(url: str) -> list[bytes]:
    """Take what the queue holds."""
    async with channel_at(url) as channel:
        queue = await channel.get_queue("work")
        bodies = []
        while (message := await queue.get(fail=False)) is not None:
            await message.ack()
            bodies.append(message.body)
        return bodies


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
async def proxy(broker_vhost: VirtualHost) -> AsyncIterator[TcpProxy]:
    async with tcp_proxy(broker_vhost.node.port) as opened:
        yield opened


class TestNode:
    def test_stops_in_good_order(self, broker_vhost: VirtualHost) -> None:
        node = broker_vhost.node
        before = node.pid
        # Each virtual host that it has known has lines of its own behind this one.
        lines_before = node.log_tail(1_000_000).count("stopped TCP listener")
        node.stop()
        assert not node.running
        assert not lives(before)
        lines = node.log_tail(1_000_000).count("stopped TCP listener")
        assert lines > lines_before, "was killed"
        node.recover()
        assert node.pid != before

    async def test_a_memory_alarm_blocks_publishers_until_it_is_cleared(
        self, broker_vhost: VirtualHost
    ) -> None:
        async with channel_at(broker_vhost.url) as channel:
            await declare(channel)
            broker_vhost.node.set_memory_alarm(on=True)
            publishing = asyncio.create_task(put(channel, b"late"))
            assert not (await asyncio.wait([publishing], timeout=0.5))[0]
            broker_vhost.node.set_memory_alarm(on=False)
            await publishing

    async def test_a_user_may_do_no_more_than_its_patterns(self, broker_vhost: VirtualHost) -> None:
        node = broker_vhost.node
        node.add_user("poor", "pass:w@rd/", vhost=broker_vhost.name, write=".*")
        url = node.url(user="poor", password="pass:w@rd/", vhost=broker_vhost.name)
        async with channel_at(url) as channel:
            with pytest.raises(ChannelAccessRefused):
                await declare(channel)

    async def test_closes_the_connections_of_that_name_alone(
        self, broker_vhost: VirtualHost
    ) -> None:
        node = broker_vhost.node
        async with (
            channel_at(broker_vhost.url, "doomed-1") as doomed,
            channel_at(broker_vhost.url, "other") as other,
        ):
            assert node.close_connections("doomed") == 1
            with pytest.raises(LOST):
                await declare(doomed)
            await declare(other)
            assert node.close_connections("doomed") == 0

    def test_a_virtual_host_starts_empty_and_goes(self, broker_vhost: VirtualHost) -> None:
        node = broker_vhost.node
        node.add_vhost("brief")
        assert "brief" in node.ctl("list_vhosts").split()
        node.delete_vhost("brief")
        assert "brief" not in node.ctl("list_vhosts").split()

    def test_tells_what_the_node_refused(self, broker: BrokerNode) -> None:
        broker.recover()
        with pytest.raises(BrokerError, match="undef"):
            broker.evaluate("no_such_module:call()")
        with pytest.raises(BrokerError, match="no_such_command"):
            broker.ctl("no_such_command")

    def test_a_node_that_does_not_come_up_says_why(self) -> None:
        node = BrokerNode()
        try:
            (node.folder / "rabbitmq.config").write_text("[nonsense")
            with pytest.raises(BrokerError, match="failed_to_read_advanced_configuration_file"):
                node.start()
            assert not node.running
        finally:
            node.close()

    def test_ends_with_the_process_that_started_it(self) -> None:
        limit = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        script = (
            "import sys, signal; from support.broker import BrokerNode;"
            f"node = BrokerNode(file_limit={limit}); node.start();"
            "print(node.pid, node.folder, flush=True); signal.pause()"
        )
        parent = subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        with parent:
            assert parent.stdout is not None
            pid, folder = parent.stdout.readline().split()
            assert psutil.Process(int(pid)).rlimit(psutil.RLIMIT_NOFILE)[0] == limit
            parent.kill()
        while lives(int(pid)):
            time.sleep(0.05)
        shutil.rmtree(folder)


class TestProxy:
    async def test_a_cut_before_the_confirm_leaves_the_message_published(
        self, broker_vhost: VirtualHost, proxy: TcpProxy
    ) -> None:
        async with channel_at(proxy.url(broker_vhost.url)) as channel:
            await declare(channel)
            happened = proxy.cut_before(Side.SERVER, Method.BASIC_ACK, occurrence=2)
            await put(channel, b"confirmed")
            assert not happened.is_set()
            with pytest.raises(LOST):
                await put(channel, b"unconfirmed")
            assert happened.is_set()
        assert await take_all(broker_vhost.url) == [b"confirmed", b"unconfirmed"]

    async def test_a_cut_before_the_ack_brings_the_message_back(
        self, broker_vhost: VirtualHost, proxy: TcpProxy
    ) -> None:
        async with channel_at(proxy.url(broker_vhost.url)) as channel:
            await declare(channel)
            await put(channel, b"work")
            message = await (await channel.get_queue("work")).get()
            happened = proxy.cut_before(Side.CLIENT, Method.BASIC_ACK)
            await message.ack()
            await happened.wait()
        assert await take_all(broker_vhost.url) == [b"work"]

    async def test_a_cut_before_the_publish_publishes_nothing(
        self, broker_vhost: VirtualHost, proxy: TcpProxy
    ) -> None:
        async with channel_at(proxy.url(broker_vhost.url)) as channel:
            await declare(channel)
            proxy.cut_before(Side.CLIENT, Method.BASIC_PUBLISH)
            with pytest.raises(LOST):
                await put(channel, b"work")
        assert await take_all(broker_vhost.url) == []

    async def test_a_stall_holds_everything_back_and_loses_nothing(
        self, broker_vhost: VirtualHost, proxy: TcpProxy
    ) -> None:
        async with channel_at(proxy.url(broker_vhost.url)) as channel:
            await declare(channel)
            proxy.stall()
            publishing = asyncio.create_task(put(channel, b"late" * 100_000))
            assert not (await asyncio.wait([publishing], timeout=0.5))[0]
            assert await take_all(broker_vhost.url) == []
            proxy.resume()
            await publishing
        assert await take_all(broker_vhost.url) == [b"late" * 100_000]

    async def test_a_cut_ends_what_is_open_even_when_stalled(
        self, broker_vhost: VirtualHost, proxy: TcpProxy
    ) -> None:
        url = proxy.url(broker_vhost.url)
        async with channel_at(url) as one, channel_at(url) as two:
            assert proxy.connections == 2
            proxy.stall()
            proxy.cut()
            for channel in (one, two):
                with pytest.raises(LOST):
                    await declare(channel)
            proxy.resume()
            async with channel_at(url) as again:
                await declare(again)
                assert proxy.connections == 1

    async def test_refuses_new_connections_and_keeps_the_open_one(
        self, broker_vhost: VirtualHost, proxy: TcpProxy
    ) -> None:
        url = proxy.url(broker_vhost.url)
        async with channel_at(url) as channel:
            proxy.refuse()
            with pytest.raises(ConnectionError):
                await aio_pika.connect(url)
            await declare(channel)
            await proxy.accept()
            async with channel_at(url) as another:
                await declare(another)

    async def test_a_client_notices_that_the_broker_is_down(self) -> None:
        async with tcp_proxy(free_port()) as proxy:
            with pytest.raises(ConnectionError):
                await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{proxy.port}/")

    def test_an_address_keeps_all_but_the_port(self) -> None:
        proxy = TcpProxy(1)
        url = proxy.url("amqp://me:p%40ss@127.0.0.1:5/a%2Fb?heartbeat=3")
        assert url == f"amqp://me:p%40ss@127.0.0.1:{proxy.port}/a%2Fb?heartbeat=3"
