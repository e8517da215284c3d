"""`spica-async topology`: what an operator makes and checks on a broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import aio_pika
import pytest
from support.broker import VirtualHost
from support.commands import Finished, Spica
from support.management import BY_BOTH, BY_POLICY, ManagementApi

from spica_async.bus import limits
from spica_async.bus.address import BrokerAddress
from spica_async.bus.consumer_timeout import ConsumerTimeout, Management, consumer_timeouts
from spica_async.bus.topology import COMMANDS_QUEUE, DEAD_QUEUE, requests_queue
from spica_async.errors import InputError

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


async def test_what_somebody_made_otherwise_is_told_with_the_brokers_words(
    topology: Topology, broker_vhost: VirtualHost
) -> None:
    await predeclare(broker_vhost.url)

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


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        (BY_POLICY, (3600, "policy slow")),
        (BY_BOTH, (60, "argument x-consumer-timeout")),
        ({"policy": None, "effective_policy_definition": None}, (None, None)),
        # An empty mapping, as the plugin writes it.
        ({"arguments": {}, "effective_policy_definition": []}, (None, None)),
    ],
)
async def test_what_the_management_api_tells(
    facts: dict[str, Any], found: tuple[float | None, str | None]
) -> None:
    address = BrokerAddress.from_options("amqp://mq")
    with ManagementApi(facts).serving() as api:
        management = Management.from_option(api.url, address)
        assert management is not None
        (told,) = await consumer_timeouts(management, "a/b", ["spica.requests.x"])

    assert (told.seconds, told.set_by) == found
    assert api.asked == ["/rabbit/api/queues/a%2Fb/spica.requests.x"]
    assert api.logins == {"ann:top@secret"}


@pytest.mark.parametrize(
    ("seconds", "limit", "good"),
    [
        (1800, limits.DEFAULT_HARD_LIMIT_SECONDS, True),
        (1799, limits.DEFAULT_HARD_LIMIT_SECONDS, False),
        (None, 1e6, True),
    ],
)
def test_a_fetched_trace_and_a_minute_go_beside_the_hard_limit(
    seconds: float | None, limit: float, *, good: bool
) -> None:
    assert ConsumerTimeout("queue", seconds, "somebody").allows(limit) is good


@pytest.mark.parametrize(("limit", "good"), [("3300", True), ("3301", False)])
def test_the_consumer_timeout_is_compared_with_the_hard_limit(
    topology: Topology, limit: str, *, good: bool
) -> None:
    with ManagementApi(BY_POLICY).serving() as api:
        code, document = topology("declare", "--management", api.url, "--hard-limit-seconds", limit)

    assert code == (0 if good else 1)
    assert document["sound"] is good
    assert document["consumer_timeouts"] == [
        {"queue": queue, "seconds": 3600, "set_by": "policy slow"} for queue in REQUESTS
    ]


async def test_the_brokers_user_may_be_that_of_the_management_api() -> None:
    address = BrokerAddress.from_options("amqp://bob:own@mq")
    with ManagementApi({}).serving() as api:
        management = Management.from_option(api.url.replace("ann:top%40secret@", ""), address)
        assert management is not None
        await consumer_timeouts(management, "/", ["queue"])

    assert api.logins == {"bob:own"}


def one_error(finished: Finished, code: int, *words: str) -> None:
    assert finished.code == code
    assert finished.stdout == ""
    assert "Traceback" not in finished.stderr
    assert finished.stderr.count("error:") == 1
    for word in words:
        assert word in finished.stderr


def test_a_management_api_that_refuses(spica: Spica, broker_vhost: VirtualHost) -> None:
    spica("topology", "declare", "--bus", broker_vhost.url)
    with ManagementApi({}, status=401).serving() as api:
        finished = spica("topology", "check", "--bus", broker_vhost.url, "--management", api.url)

    one_error(finished, 1, "management API http://127.0.0.1", "HTTP 401")
    assert "secret" not in finished.stderr


def test_wrong_options(spica: Spica) -> None:
    url = "amqp://mq"
    one_error(spica("topology", "check"), 2, "--bus", "SPICA_BUS")
    one_error(spica("topology", "check", "--bus", url, "--engine", "a.b"), 2, "--engine", "a.b")


def test_a_wrong_url_of_the_management_api() -> None:
    address = BrokerAddress.from_options("amqp://mq")
    for url in ("mq:15672", "ftp://mq", "http://", "http://[", ""):
        with pytest.raises(InputError, match=r"^--management: "):
            Management.from_option(url, address)
    with pytest.raises(InputError, match=r"^SPICA_BUS_MANAGEMENT: "):
        Management.from_option(None, address, {"SPICA_BUS_MANAGEMENT": "mq:15672"})


def test_the_management_api_may_be_named_by_a_variable() -> None:
    address = BrokerAddress.from_options("amqp://mq")

    def read(option: str | None, **environ: str) -> str | None:
        management = Management.from_option(option, address, environ)
        return None if management is None else str(management.url)

    assert read(None) is None
    assert read(None, SPICA_BUS_MANAGEMENT="") is None
    assert read(None, SPICA_BUS_MANAGEMENT="http://there:15672") == "http://there:15672"
    assert read("http://here:1", SPICA_BUS_MANAGEMENT="http://there:1") == "http://here:1"


def test_a_broker_that_refuses_the_user(spica: Spica, broker_vhost: VirtualHost) -> None:
    url = broker_vhost.node.url(user="nobody", password="hunter2", vhost=broker_vhost.name)

    finished = spica("topology", "check", "--bus", url)

    one_error(finished, 1, "nobody", "refused")
    assert "hunter2" not in finished.stderr


async def test_health_is_a_connection_to_the_broker(
    spica: Spica, broker_vhost: VirtualHost
) -> None:
    one_error(spica("health", "--bus", "amqp://127.0.0.1:1"), 1, "127.0.0.1:1")
    async with await aio_pika.connect(broker_vhost.url):
        assert spica("health", "--bus", broker_vhost.url).code == 0
