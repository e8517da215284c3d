"""What is said of the workers and of the way to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from spica_async.evaluate.fleet import FleetView, WorkerView
from spica_async.report.units import seconds

CONNECTED: Final = "connected"
BLOCKED: Final = "blocked"

_NAMED_WORKERS = 8
_SHOWN_TROUBLES = 3


def workers_line(view: FleetView) -> str:
    """How many there are and what they can do: `workers: 3 (1 starting), slots 8`."""
    states = Counter(worker.state for worker in view.workers if worker.state != "ready")
    others = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return f"workers: {len(view.workers)}{f' ({others})' if others else ''}, slots {view.slots}"


def who_works(workers: Sequence[WorkerView]) -> str:
    """Each worker's busy slots, if there are several: `host-a-17 4/4, host-b-9 1/4`."""
    if len(workers) < 2:
        return ""
    named = [f"{one.name} {one.busy}/{one.slots}" for one in workers[:_NAMED_WORKERS]]
    more = len(workers) - len(named)
    return ", ".join([*named, f"and {more} more"] if more else named)


def concerns(view: FleetView) -> list[str]:
    """What a person may have to do something about, one line each."""
    lines = []
    if view.waiting_for is not None:
        lines.append(f"waiting: {view.waiting_for}")
    elif view.foreign:
        lines.append(
            f"workers with another engine, which take nothing: {view.foreign}"
            f" ({'; '.join(view.differences)})"
        )
    lines += [f"trouble: {trouble}" for trouble in view.troubles[:_SHOWN_TROUBLES]]
    more = len(view.troubles) - _SHOWN_TROUBLES
    return [*lines, f"trouble: and {more} more"] if more > 0 else lines


def broker_line(state: str, why: str, since_seconds: float | None = None) -> str:
    """How it stands with the broker, and for how long if that is known."""
    if state == CONNECTED:
        return "broker: connected"
    since = "" if since_seconds is None else f" since {seconds(since_seconds)}"
    reason = f" ({why})" if why else ""
    if state == BLOCKED:
        return f"broker: does not take messages{since}{reason}; waiting"
    return f"broker: unreachable{since}{reason}; trying again"
