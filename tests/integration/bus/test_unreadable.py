"""Messages whose properties the client library cannot read."""

from __future__ import annotations

import asyncio

import pytest
from support.broker import VirtualHost

from spica_async.bus.port import Message
from spica_async.bus.rabbitmq.bus import RabbitBus

# The broker's record of properties, of which those in braces are set here.
PROPERTIES = (
    "{{'P_basic', {content_type}, undefined, {headers}, 2, undefined, undefined, undefined,"
    " undefined, undefined, {timestamp}, {type}, undefined, undefined, undefined}}"
)
PLAIN = dict.fromkeys(("content_type", "timestamp", "type"), "undefined") | {"headers": "[]"}


@pytest.mark.parametrize(
    "odd",
    [
        {"type": "<<99,97,102,233>>"},
        {"content_type": "<<255,254>>"},
        {"timestamp": "18446744073709551615"},
        {"headers": "[{<<233>>, longstr, <<255>>}]"},
        {"headers": '[{<<"x-death">>, longstr, <<"none">>}]'},
        {"headers": '[{<<"x-delivery-count">>, longstr, <<"many">>}]'},
    ],
    ids=str,
)
async def test_it_arrives_and_can_be_settled_like_any_other(
    bus: RabbitBus, broker_vhost: VirtualHost, odd: dict[str, str]
) -> None:
    exchange = f'{{resource, <<"{broker_vhost.name}">>, exchange, <<>>}}'
    properties = PROPERTIES.format(**(PLAIN | odd))
    await asyncio.to_thread(
        broker_vhost.node.evaluate,
        f'rabbit_basic:publish({exchange}, <<"work">>, {properties}, [<<"body">>])',
    )
    await bus.publish("work", Message(b"sound", "next", "test.v1"))
    async with bus.consume("work", prefetch=1) as consumer, asyncio.timeout(60):
        delivery = await anext(consumer)
        assert delivery.message.body == b"body"
        assert delivery.delivery_count == 0
        assert delivery.dead_letter is None
        await delivery.nack(requeue=False)
        following = await anext(consumer)
        assert following.message.body == b"sound"
        await following.ack()
    async with bus.consume("dead", prefetch=1) as consumer, asyncio.timeout(60):
        dead = await anext(consumer)
        assert dead.message.body == b"body"
        await dead.ack()
