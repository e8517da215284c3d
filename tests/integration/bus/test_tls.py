"""A broker that is reached by TLS: what does not go together shows at once, and what to change."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.broker import VirtualHost

from spica_async.bus.address import BrokerAddress
from spica_async.bus.port import AccessRefusedError, BusUnavailableError, Message
from spica_async.bus.rabbitmq.bus import RabbitBus

from .conftest import Diary


@asynccontextmanager
async def open_at(
    host: str, port: int, pki: Path | None, *, ca: str = "ca.pem", own: str | None = None
) -> AsyncIterator[RabbitBus]:
    """A bus there; without a folder of certificates by plain AMQP."""
    scheme = "amqp" if pki is None else "amqps"
    address = BrokerAddress.from_options(
        f"{scheme}://guest:guest@{host}:{port}",
        ca=pki / ca if pki else None,
        cert=pki / f"{own}.pem" if pki and own else None,
        key=pki / f"{own}.key" if pki and own else None,
        environ={},
    )
    async with RabbitBus.open(
        address, name="spica-test", private_queues="spica.worker.test", on_state=Diary()
    ) as bus:
        yield bus


async def refusal(
    host: str, port: int, pki: Path | None, *, ca: str = "ca.pem", own: str | None = None
) -> str:
    """Why no bus is had there; known long before the patience for a broker is over."""
    began = time.monotonic()
    with pytest.raises(AccessRefusedError) as refused:
        async with open_at(host, port, pki, ca=ca, own=own):
            pass
    assert time.monotonic() - began < 10
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_trusted_broker_is_used(broker_vhost: VirtualHost, pki: Path, host: str) -> None:
    port = broker_vhost.node.listen_for_tls(pki)
    async with open_at(host, port, pki) as bus, bus.listen() as words:
        await bus.broadcast(Message(b"", "word", "test.v1"))
        assert (await anext(words)).message_id == "word"


async def test_an_untrusted_broker(broker_vhost: VirtualHost, pki: Path) -> None:
    port = broker_vhost.node.listen_for_tls(pki)
    said = await refusal("localhost", port, pki, ca="stranger.pem")
    assert re.search("certificate is not trusted: .*; --ca names", said)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_a_broker_of_another_name(broker_vhost: VirtualHost, pki: Path, host: str) -> None:
    port = broker_vhost.node.listen_for_tls(pki, "elsewhere")
    said = await refusal(host, port, pki)
    assert re.search(f"certificate is for another name: .*'{host}'; use a name .*--ca", said)


async def test_an_expired_certificate(broker_vhost: VirtualHost, pki: Path) -> None:
    port = broker_vhost.node.listen_for_tls(pki, "expired")
    said = await refusal("localhost", port, pki)
    assert re.search("certificate.* is not valid now: certificate has expired; .*clock", said)


@pytest.mark.parametrize("own", [None, "stranger"])
async def test_a_broker_that_asks_for_a_certificate(
    broker_vhost: VirtualHost, pki: Path, own: str | None
) -> None:
    port = broker_vhost.node.listen_for_tls(pki, asks=True)
    said = await refusal("localhost", port, pki, own=own)
    assert re.search("does not accept our certificate.*: --cert and --key", said)
    async with open_at("localhost", port, pki, own="client"):
        pass


async def test_plain_amqp_to_a_port_for_tls(broker_vhost: VirtualHost, pki: Path) -> None:
    port = broker_vhost.node.listen_for_tls(pki)
    assert "amqps://" in await refusal("localhost", port, None)


async def test_tls_to_a_port_for_plain_amqp(broker_vhost: VirtualHost, pki: Path) -> None:
    said = await refusal("127.0.0.1", broker_vhost.node.port, pki)
    assert re.search("no TLS is spoken at this port; amqp://", said)


async def test_what_ends_in_mid_handshake_may_pass(pki: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        address = BrokerAddress.from_options(
            f"amqps://guest:guest@127.0.0.1:{port}", ca=pki / "ca.pem", environ={}
        )
        with pytest.raises(BusUnavailableError, match="no connection") as away:
            async with RabbitBus.open(
                address, name="spica-test", private_queues="spica.x", connect_seconds=0.5
            ):
                pass
    assert "not permitted" not in str(away.value)
