"""How a worker starts, limits and ends its children."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

from spica_async.processes import container

ENGINE_EVALUATOR = "spica_async.engine.evaluation:evaluate"
ENGINE_WARM_UP = "spica_async.engine.evaluation:warm_up"

_SMALL_REPLAY_BYTES = 768 * 2**20
"""A child with the engine loaded takes half a gigabyte before its first request."""
_AVAILABLE_MEMORY_SHARE = 0.9
"""The rest is for the supervisor and for what the system takes in the meantime."""


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """What every child of a worker has in common.

    `evaluator` is the `module:name` of a `Callable[[EvaluationRequest], Measurement]`, and
    `warm_up`, if any, of a function without parameters to be called once before the first
    request; what it returns, if anything, is called with each request before the time of its
    evaluation begins. `import_paths` are searched before this process's own `sys.path`. What a
    child writes to stdout and stderr goes to `slot-<index>.log` in `log_folder`, or nowhere.

    A child must take requests `start_seconds` after its start, and one that does not is replaced,
    with pauses of `restart_pause_seconds` doubled each time, `start_attempts` in all. In the same
    time it must be set up for a request. A process group that is to end gets SIGTERM, and SIGKILL
    after `term_grace_seconds`. The memory of a running evaluation is looked at every
    `memory_sample_seconds`.
    """

    evaluator: str = ENGINE_EVALUATOR
    warm_up: str | None = ENGINE_WARM_UP
    import_paths: tuple[str, ...] = ()
    log_folder: Path | None = None
    start_seconds: float = 120.0
    start_attempts: int = 3
    restart_pause_seconds: float = 0.5
    term_grace_seconds: float = 5.0
    memory_sample_seconds: float = 0.5


def default_slots() -> int:
    """As many as there are cores that this process may use, a container's quota rounded down."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = container.allowed_cores()
    return cores if quota is None else max(1, min(cores, int(quota)))


def slots_that_fit() -> int:
    """How many slots the memory that is available now leaves enough for a small replay each."""
    return max(1, memory_share(1) // _SMALL_REPLAY_BYTES)


def memory_share(slots: int) -> int:
    """The bytes of one slot when the memory that is available now is shared among all."""
    available = psutil.virtual_memory().available
    room = container.available_memory()
    return (
        int(min(available, available if room is None else room) * _AVAILABLE_MEMORY_SHARE) // slots
    )
