"""The names and arguments of all queues and topics, so that every process declares them alike."""

from __future__ import annotations

import re
from typing import Final

from spica_async.bus.port import Bus, QueueSpec

DELIVERY_LIMIT: Final = 20
"""A backstop against a message that takes its worker down each time."""

DEAD_QUEUE: Final = QueueSpec("spica.dead")
"""Takes what nobody could handle. It has no limit of its own: there is nowhere to go from here."""

EVALUATION_STARTED_TOPIC: Final = "worker.evaluation.started"

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")


def requests_queue(engine_fingerprint: str) -> QueueSpec:
    """The queue of evaluation requests for workers with exactly this engine.

    Raises:
        ValueError: the fingerprint is not 1 to 128 letters, digits, `_` or `-`.
    """
    return _work_queue("spica.requests", engine_fingerprint)


def results_queue(coordinator: str) -> QueueSpec:
    """The queue in which one coordinator receives its results; goes into `reply_to`.

    Raises:
        ValueError: the coordinator's name is not 1 to 128 letters, digits, `_` or `-`.
    """
    return _work_queue("spica.results", coordinator)


async def declare(bus: Bus, *queues: QueueSpec) -> None:
    """Declare work queues, and before them the dead-letter queue that they share."""
    for spec in (DEAD_QUEUE, *queues):
        await bus.declare_queue(spec)


def _work_queue(prefix: str, owner: str) -> QueueSpec:
    if not _PLAIN_NAME.fullmatch(owner):
        raise ValueError(f"{prefix}.*: {owner!r} is not 1 to 128 letters, digits, '_' or '-'")
    return QueueSpec(f"{prefix}.{owner}", DELIVERY_LIMIT, DEAD_QUEUE.name)
