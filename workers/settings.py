"""How a worker works, and how it starts, limits and ends its children."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from spica_async.bus.limits import DEFAULT_HARD_LIMIT_SECONDS
from spica_async.engine.versions import engine_fingerprint
from spica_async.errors import InputError
from spica_async.processes import container
from spica_async.processes.memory import free_memory
from workers.port import TraceProvider

DEFAULT_DRAIN_SECONDS = 30.0
DEFAULT_HEARTBEAT_SECONDS = 10.0

ENGINE_EVALUATOR = "spica_async.engine.evaluation:evaluate"
ENGINE_WARM_UP = "spica_async.engine.evaluation:warm_up"
ENGINE_WARM_UP_WITH_PLANNER = "spica_async.engine.evaluation:warm_up_with_planner"

_SMALL_REPLAY_BYTES = 768 * 2**20
"""A child with the engine loaded takes half a gigabyte before its first request."""


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


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """How a worker works.

    Attributes:
        name: Stands in results and events, and names queues: letters, digits, `_` and `-`.
        slots: How many evaluations may run at once.
        drain_seconds: How long evaluations may go on once the worker is to stop.
        heartbeat_seconds: Between two heartbeats.
        hard_limit_seconds: Bounds each evaluation, whatever its request allows; none: no bound.
        engine_fingerprint: Of the engine that the children have; names the queue.
        children: How children are started and ended.
        traces: Where children find traces; none: where the request says.
    """

    name: str
    slots: int
    drain_seconds: float = DEFAULT_DRAIN_SECONDS
    heartbeat_seconds: float = DEFAULT_HEARTBEAT_SECONDS
    hard_limit_seconds: float | None = DEFAULT_HARD_LIMIT_SECONDS
    engine_fingerprint: str = field(default_factory=engine_fingerprint)
    children: ChildSettings = field(default_factory=ChildSettings)
    traces: TraceProvider | None = None


def default_name() -> str:
    """Host and process id, which no other worker has."""
    return f"{socket.gethostname()}-{os.getpid()}"


def default_slots() -> int:
    """As many as there are cores that this process may use, a container's quota rounded down."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = container.allowed_cores()
    return cores if quota is None else max(1, min(cores, int(quota)))


def checked_slots(asked: int | None) -> int:
    """As many slots as were asked for, or else one per core as far as memory goes.

    Raises:
        InputError: the memory is not enough for a small replay in each that was asked for.
    """
    fitting = max(1, free_memory() // _SMALL_REPLAY_BYTES)
    if asked is not None and asked > fitting:
        raise InputError(f"--slots: the memory that is free now is enough for {fitting}")
    return asked or min(default_slots(), fitting)
