"""`spica-async topology`: what an operator makes and checks on a broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aio_pika
import pytest
from support.broker import VirtualHost
from support.commands import Finished, Spica

from spica_async.bus.topology import COMMANDS_QUEUE, DEAD_QUEUE, requests_queue

ENGINES = ("--engine", "one", "--engine", "two")
REQUESTS = [requests_queue(engine).name for engine in ("one", "two")]
ALL = ["spica.events", "spica.control", DEAD_QUEUE.name, COMMANDS_QUEUE.name, *REQUESTS]

Topology = Callable[..., tuple[int, dict[str, Any]]]
"""Runs `spica-async topology` and returns its exit code and its document."""


@pytest.fixture
def topology(spica: Spica, broker_vhost: VirtualHost) -> Topology:
    def run(action: str, *arguments: str, url: str = broker_vhost.url) -> tuple[int, Any]:
        finished = spica("topology", action, "--bus", url, "--json", *ENGINES, *arguments)
        assert finished.stdout, finished.stderr
        return finished.code, json.loads(finished.stdout)

    return run


def standings(document: dict[str, Any]) -> dict[str, str]:
    return {finding["name"]: finding["standing"] for finding in document["findings"]}


def limited_user(vhost: VirtualHost, **rights: str) -> str:
    """The URL of a user with these rights in the virtual host and no others."""
    vhost.node.add_user("limited", "secret", vhost=vhost.name, **rights)
    return vhost.node.url(user="limited", password="secret", vhost=vhost.name)


def test_what_is_declared_is_there(topology: Topology) -> None:
    for _ in range(2):  # To look at it makes nothing.
        code, before = topology("check")
        assert code == 1
        assert standings(before) == dict.fromkeys(ALL, "missing")
        assert not before["sound"]
    code, made = topology("declare")
    assert code == 0
    assert standings(made) == dict.fromkeys(ALL, "ok")

    assert topology("check") == (0, made)


def test_the_installed_engine_is_the_one_that_is_meant(
    spica: Spica, broker_vhost: VirtualHost
) -> None:
    from spica_async.engine.versions import engine_fingerprint

    finished = spica("topology", "declare", "--bus", broker_vhost.url)

    assert finished.code == 0, finished.stderr
    assert requests_queue(engine_fingerprint()).name in finished.stdout
    assert "consumer_timeout" in finished.stdout
    assert "1500 s" in finished.stdout


async def predeclare(url: str) -> None:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await channel.declare_exchange("spica.events", "direct", durable=True)
        await channel.declare_queue(DEAD_QUEUE.name, durable=True)


def test_what_somebody_made_otherwise_is_told_with_the_brokers_words(
    topology: Topology, broker_vhost: VirtualHost
) -> None:
    asyncio.run(predeclare(broker_vhost.url))

    code, checked = topology("check")
    assert code == 1
    assert standings(checked) == dict.fromkeys(ALL, "missing") | {
        "spica.events": "other arguments",
        DEAD_QUEUE.name: "other arguments",
    }
    details = {finding["name"]: finding["detail"] for finding in checked["findings"]}
    assert "inequivalent arg 'type'" in details["spica.events"]
    assert "x-queue-type" in details[DEAD_QUEUE.name]

    code, declared = topology("declare")
    assert code == 1
    assert standings(declared) == dict.fromkeys(ALL, "ok") | {
        "spica.events": "other arguments",
        DEAD_QUEUE.name: "other arguments",
    }


def test_without_rights_one_sees_what_exists_and_makes_nothing(
    topology: Topology, broker_vhost: VirtualHost
) -> None:
    url = limited_user(broker_vhost)

    code, refused = topology("declare", url=url)
    assert code == 1
    assert standings(refused) == dict.fromkeys(ALL, "no right")
    assert standings(topology("check")[1]) == dict.fromkeys(ALL, "missing")

    topology("declare")
    code, seen = topology("check", url=url)
    assert code == 0
    assert standings(seen) == dict.fromkeys(ALL, "exists")


def one_error(finished: Finished, code: int, *words: str) -> None:
    assert finished.code == code
    assert finished.stdout == ""
    assert "Traceback" not in finished.stderr
    assert finished.stderr.count("error:") == 1
    for word in words:
        assert word in finished.stderr


def test_wrong_options(spica: Spica) -> None:
    url = "amqp://mq"
    one_error(spica("topology", "check"), 2, "--bus", "SPICA_BUS")
    one_error(spica("topology", "check", "--bus", url, "--engine", "a.b"), 2, "--engine", "a.b")


def test_a_broker_that_refuses_the_user(spica: Spica, broker_vhost: VirtualHost) -> None:
    url = broker_vhost.node.url(user="nobody", password="hunter2", vhost=broker_vhost.name)

    finished = spica("topology", "check", "--bus", url)

    one_error(finished, 1, "nobody", "refused")
    assert "hunter2" not in finished.stderr


async def test_health_is_a_connection_to_the_broker(
    spica_process: Spica, broker_vhost: VirtualHost
) -> None:
    one_error(spica_process("health", "--bus", "amqp://127.0.0.1:1"), 1, "127.0.0.1:1")
    async with await aio_pika.connect(broker_vhost.url):
        assert spica_process("health", "--bus", broker_vhost.url).code == 0
