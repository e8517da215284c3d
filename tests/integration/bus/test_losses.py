"""What a bus does when its broker, a connection or a channel goes away."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest
from aio_pika.abc import AbstractChannel
from support.broker import VirtualHost
from support.faults.channels import break_channels
from support.proxy import Method, Side, TcpProxy

from spica_async.bus.port import (
    BusUnavailableError,
    Consumer,
    Delivery,
    DeliveryLostError,
    Message,
)
from spica_async.bus.rabbitmq.bus import RabbitBus
from spica_async.bus.rabbitmq.link import Link
from spica_async.bus.rabbitmq.state import BusState

from .conftest import Diary, OpenBus


def message(name: str) -> Message:
    return Message(name.encode(), name, "test.v1")


async def take(consumer: Consumer) -> Delivery:
    async with asyncio.timeout(60):
        return await anext(consumer)


async def names_until_empty(bus: RabbitBus) -> list[str]:
    """Take and ack everything in the queue, up to a last message of our own."""
    await bus.publish("work", message("the end"))
    names: list[str] = []
    async with bus.consume("work", prefetch=1) as consumer:
        while not names or names[-1] != "the end":
            delivery = await take(consumer)
            names.append(delivery.message.message_id)
            await delivery.ack()
    return names[:-1]


async def test_a_broker_that_is_killed_loses_nothing_confirmed_and_all_goes_on_by_itself(
    bus: RabbitBus, broker_vhost: VirtualHost, diary: Diary
) -> None:
    node = broker_vhost.node
    await bus.publish("work", message("held"))
    await bus.publish("work", message("waiting"))
    async with (
        bus.consume("work", prefetch=1) as consumer,
        bus.subscribe("#") as events,
        bus.listen() as words,
    ):
        held = await take(consumer)
        await asyncio.to_thread(node.kill)
        await diary.until(BusState.CONNECTING)
        async with asyncio.TaskGroup() as group:
            publishing = group.create_task(bus.publish("work", message("meanwhile")))
            await asyncio.to_thread(node.start)
            await publishing
        await diary.until(BusState.CONNECTED)
        with pytest.raises(DeliveryLostError, match="held"):
            await held.ack()
        seen = {}
        for _ in range(3):
            delivery = await take(consumer)
            seen[delivery.message.message_id] = delivery.delivery_count
            await delivery.ack()
        # A count of deliveries need not outlive a broker that is killed.
        assert seen.keys() == {"held", "waiting", "meanwhile"}
        await bus.broadcast(message("word"))
        await bus.publish_event("topic", message("event"))
        async with asyncio.timeout(60):
            assert (await anext(words)).message_id == "word"
            assert (await anext(events)).message.message_id == "event"
    states = [state for state, _ in diary.entries]
    assert states[0] is BusState.CONNECTED
    assert states[-1] is BusState.CONNECTED
    assert BusState.CONNECTING in states


async def test_verbs_wait_no_longer_than_their_patience_and_events_not_at_all(
    open_bus: OpenBus, proxy: TcpProxy, broker_vhost: VirtualHost, diary: Diary
) -> None:
    async with open_bus(broker_vhost.url):
        pass  # To declare queues may take longer than the patience that is tested.
    async with open_bus(proxy.url(broker_vhost.url), patience_seconds=1) as bus:
        proxy.refuse()
        proxy.cut()
        assert await diary.until(BusState.CONNECTING)
        for verb in (
            bus.publish("work", message("a")),
            bus.broadcast(message("a")),
            bus.queue_status("work"),
            bus.consume("work", prefetch=1).__aenter__(),
            bus.subscribe("#").__aenter__(),
        ):
            with pytest.raises(BusUnavailableError, match="for 1 s"):
                await verb
        with pytest.raises(BusUnavailableError, match="event topic: the broker"):
            async with asyncio.timeout(60):
                await bus.publish_event("topic", message("event"))


class TestConnectionCut:
    async def test_between_publish_and_confirm(
        self, proxied_bus: RabbitBus, proxy: TcpProxy
    ) -> None:
        await proxied_bus.publish("work", message("before"))
        cut = proxy.cut_before(Side.SERVER, Method.BASIC_ACK)
        await proxied_bus.publish("work", message("a"))
        assert cut.is_set()
        # Published twice, under one id.
        assert await names_until_empty(proxied_bus) == ["before", "a", "a"]

    async def test_between_result_and_ack(self, proxied_bus: RabbitBus, proxy: TcpProxy) -> None:
        await proxied_bus.publish("work", message("a"))
        async with proxied_bus.consume("work", prefetch=1) as consumer:
            first = await take(consumer)
            cut = proxy.cut_before(Side.CLIENT, Method.BASIC_ACK)
            # Whether the ack is seen to fail is a matter of luck.
            with suppress(DeliveryLostError):
                await first.ack()
            again = await take(consumer)
            assert cut.is_set()
            assert (again.message.message_id, again.delivery_count) == ("a", 1)
            await again.ack()

    async def test_many_publishes_at_once_are_all_taken(
        self, proxied_bus: RabbitBus, proxy: TcpProxy
    ) -> None:
        # One acknowledgement may be for all of them.
        cut = proxy.cut_before(Side.SERVER, Method.BASIC_ACK)
        expected = {str(number) for number in range(50)}
        async with asyncio.TaskGroup() as group:
            for name in expected:
                group.create_task(proxied_bus.publish("work", message(name)))
        assert cut.is_set()
        assert set(await names_until_empty(proxied_bus)) == expected


async def test_a_stalled_connection_is_given_up_after_its_heartbeats(
    proxied_bus: RabbitBus, proxy: TcpProxy, diary: Diary
) -> None:
    await proxied_bus.publish("work", message("held"))
    async with proxied_bus.consume("work", prefetch=1) as consumer:
        held = await take(consumer)
        proxy.stall()
        await diary.until(BusState.CONNECTING)
        proxy.cut()
        proxy.resume()
        again = await take(consumer)
        assert again.message.message_id == "held"
        with pytest.raises(DeliveryLostError):
            await held.ack()
        await again.ack()
    assert await diary.until(BusState.CONNECTED) == ""


async def test_a_channel_that_is_closed_by_an_error_is_replaced(
    bus: RabbitBus, broker_vhost: VirtualHost
) -> None:
    await bus.publish("work", message("a"))
    async with bus.consume("work", prefetch=1) as consumer:
        lost = await take(consumer)
        assert await asyncio.to_thread(break_channels, broker_vhost.node, "spica-test") >= 1
        again = await take(consumer)
        assert (again.message.message_id, again.delivery_count) == ("a", 1)
        with pytest.raises(DeliveryLostError):
            await lost.ack()
        await again.ack()
    assert await names_until_empty(bus) == []


async def test_a_refused_publish_does_not_disturb_its_neighbours(bus: RabbitBus) -> None:
    async def publish(queue: str, name: str) -> str:
        try:
            await bus.publish(queue, message(name))
        except Exception as error:  # noqa: BLE001 - the test compares what became of each
            return type(error).__name__
        return "taken"

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(publish("work" if number % 2 else "nowhere", "one id for all"))
            for number in range(40)
        ]
    outcomes = [task.result() for task in tasks]
    assert outcomes == ["UnroutableError", "taken"] * 20
    assert await names_until_empty(bus) == ["one id for all"] * 20


class TestMemoryAlarm:
    async def test_publishing_waits_and_consuming_goes_on(
        self, bus: RabbitBus, broker_vhost: VirtualHost, diary: Diary
    ) -> None:
        node = broker_vhost.node
        await bus.publish("work", message("before"))
        await asyncio.to_thread(node.set_memory_alarm, on=True)
        async with asyncio.TaskGroup() as group:
            publishing = group.create_task(bus.publish("work", message("during")))
            assert "memory" in await diary.until(BusState.BLOCKED)
            async with bus.consume("work", prefetch=1) as consumer:
                delivery = await take(consumer)
                assert delivery.message.message_id == "before"
                await delivery.ack()
            assert (await bus.queue_status("work")).ready == 0
            assert not publishing.done()
            await asyncio.to_thread(node.set_memory_alarm, on=False)
        assert await diary.until(BusState.CONNECTED) == ""
        assert await names_until_empty(bus) == ["during"]

    @pytest.mark.usefixtures("bus")  # Its queues are there already.
    async def test_the_wait_is_bounded(self, open_bus: OpenBus, broker_vhost: VirtualHost) -> None:
        async with open_bus(broker_vhost.url, patience_seconds=1) as bus:
            await asyncio.to_thread(broker_vhost.node.set_memory_alarm, on=True)
            with pytest.raises(BusUnavailableError, match="for 1 s"):
                await bus.publish("work", message("a"))
            await asyncio.to_thread(broker_vhost.node.set_memory_alarm, on=False)


async def test_an_idle_consumer_moves_to_a_new_channel_and_loses_nothing(
    bus: RabbitBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spica_async.bus.rabbitmq.consumer._REFRESH_SECONDS", 0.005)
    opened = 0
    open_channel = Link.open_channel

    async def counted(link: Link, *, confirms: bool = False) -> AbstractChannel:
        nonlocal opened
        opened += 1
        return await open_channel(link, confirms=confirms)

    monkeypatch.setattr(Link, "open_channel", counted)
    taken = []
    async with bus.consume("work", prefetch=1) as consumer:
        for number in range(60):
            await bus.publish("work", message(str(number)))
            delivery = await take(consumer)
            taken.append(delivery.message.message_id)
            # What was handed out can be settled: it would be evaluated twice otherwise.
            await delivery.ack()
            await asyncio.sleep(random.uniform(0, 0.02))
    assert taken == [str(number) for number in range(60)]
    assert opened > 5
