"""The names and arguments of all queues and topics, so that every process declares them alike."""

from __future__ import annotations

import re
from typing import Final

from spica_async.bus.port import Bus, QueueNotFoundError, QueueSpec

DELIVERY_LIMIT: Final = 20
"""A backstop against a message that takes its worker down each time."""

DEAD_QUEUE: Final = QueueSpec("spica.dead")
"""Takes messages that nobody could handle. It has no limit: there is nowhere to go from here."""

COMMANDS_QUEUE: Final = QueueSpec("spica.commands", DELIVERY_LIMIT, DEAD_QUEUE.name)
"""Takes commands for daemons; each command goes to one of them."""

EVENTS_EXCHANGE: Final = "spica.events"
"""A topic exchange, for all who listen."""
CONTROL_EXCHANGE: Final = "spica.control"
"""A fanout exchange: every worker hears all of it."""

RESULTS_EXPIRE_SECONDS: Final = 24 * 60 * 60
"""How long results wait for a coordinator that is gone."""

EVALUATION_STARTED_TOPIC: Final = "worker.evaluation.started"
WORKER_HEARTBEAT_TOPIC: Final = "worker.heartbeat"
WORKER_JOINED_TOPIC: Final = "worker.joined"
WORKER_LEFT_TOPIC: Final = "worker.left"
WORKER_TOPICS: Final = "worker.#"
"""All events of workers."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


def requests_queue(engine_fingerprint: str) -> QueueSpec:
    """The queue of evaluation requests for workers with exactly this engine.

    Raises:
        ValueError: the fingerprint is not 1 to 128 letters, digits, `_` or `-`.
    """
    return QueueSpec(_name("spica.requests", engine_fingerprint), DELIVERY_LIMIT, DEAD_QUEUE.name)


def results_queue(coordinator: str) -> QueueSpec:
    """The queue in which one coordinator receives its results; goes into `reply_to`.

    Raises:
        ValueError: the coordinator's name is not 1 to 128 letters, digits, `_` or `-`.
    """
    return QueueSpec(
        _name("spica.results", coordinator),
        DELIVERY_LIMIT,
        DEAD_QUEUE.name,
        RESULTS_EXPIRE_SECONDS,
    )


async def declare(bus: Bus, *queues: QueueSpec) -> None:
    """Declare work queues, and before them the dead-letter queue that they share."""
    for spec in (DEAD_QUEUE, *queues):
        await bus.declare_queue(spec)


def _name(prefix: str, owner: str) -> str:
    if not _PLAIN_NAME.fullmatch(owner):
        raise ValueError(f"{prefix}.*: {owner!r} is not 1 to 128 letters, digits, '_' or '-'")
    return f"{prefix}.{owner}"


async def exists(bus: Bus, queue: QueueSpec) -> bool:
    """Whether there is a queue of that name, with whatever arguments.

    Raises:
        BusUnavailableError: the bus is away.
    """
    try:
        await bus.queue_status(queue.name)
    except QueueNotFoundError:
        return False
    return True
