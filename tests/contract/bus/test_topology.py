"""The queues that all processes declare alike, and what no queue may be."""

from __future__ import annotations

import pytest

from spica_async.bus.port import Bus, DeadLetterReason, Message, QueueSpec
from spica_async.bus.topology import (
    DEAD_QUEUE,
    DELIVERY_LIMIT,
    declare,
    requests_queue,
    results_queue,
)


def test_names() -> None:
    assert requests_queue("1a2b").name == "spica.requests.1a2b"
    assert results_queue("host-42").name == "spica.results.host-42"
    assert DEAD_QUEUE.name == "spica.dead"


@pytest.mark.parametrize("owner", ["", "a.b", "a b", "a#", "é", "x" * 129])
def test_an_owner_is_one_plain_word(owner: str) -> None:
    with pytest.raises(ValueError, match="letters, digits"):
        requests_queue(owner)
    with pytest.raises(ValueError, match="letters, digits"):
        results_queue(owner)


def test_the_longest_owner() -> None:
    assert results_queue("x" * 128).name.endswith("x" * 128)


async def test_a_request_that_nobody_survives_ends_in_the_dead_letter_queue(bus: Bus) -> None:
    requests = requests_queue("1a2b")
    await declare(bus, requests, results_queue("host-42"))
    await bus.publish(requests.name, Message(b"{}", "deadly", "test.v1"))
    for _ in range(DELIVERY_LIMIT + 1):
        async with bus.consume(requests.name, prefetch=1) as consumer:
            await anext(consumer)
    async with bus.consume(DEAD_QUEUE.name, prefetch=1) as consumer:
        dead = await anext(consumer)
    assert dead.message.message_id == "deadly"
    assert dead.dead_letter is not None
    assert dead.dead_letter.reason is DeadLetterReason.DELIVERY_LIMIT


async def test_every_process_may_declare(bus: Bus) -> None:
    await declare(bus, requests_queue("1a2b"))
    await declare(bus, requests_queue("1a2b"), results_queue("host-42"))


@pytest.mark.parametrize(
    ("limit", "dead_letter_queue", "why"),
    [
        (-1, "dead", "below 0"),
        (3, None, "needs a dead-letter queue"),
        (3, "work", "its own dead-letter queue"),
        (None, "work", "its own dead-letter queue"),
    ],
)
def test_what_no_queue_may_be(limit: int | None, dead_letter_queue: str | None, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        QueueSpec("work", limit, dead_letter_queue)


def test_a_message_may_be_allowed_no_second_delivery() -> None:
    assert QueueSpec("work", 0, "dead").delivery_limit == 0
