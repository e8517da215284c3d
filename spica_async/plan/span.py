"""How long a load takes to arrive, bounded: a planner looks at all of it, interval by interval."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, cast

from schemas.presets import SCALING_POLICIES, expand
from schemas.search_space import CompositeEntry
from schemas.workload import Workload
from spica_async.errors import InputError
from spica_async.space.knobs import scales
from spica_async.traces.check import MOST_DAYS, TraceFacts

# Twenty minutes or so of each replay; at 5 s it is 57 days.
_MOST_LOOKS: Final = 1_000_000
# The replay takes two kilobytes for each.
_MOST_REQUESTS: Final = 100_000_000
# Beyond it nobody counts digits.
_MOST_SHOWN_DAYS: Final = 1e12
_SECONDS_PER_DAY: Final = 24 * 3600
_MS: Final = 1000


class _Span(NamedTuple):
    """Least seconds until the last request comes, and the field that has most to do with it."""

    seconds: float
    field: str


def check_span(
    workload: Workload, policies: Iterable[CompositeEntry], facts: TraceFacts | None
) -> None:
    """See that the load ends in a time that somebody can have meant.

    How long a closed loop takes is up to each deployment, save for the delays within sessions.

    Args:
        workload: the load.
        policies: the planner's scaling policies that are searched.
        facts: of the trace, if the workload is one.

    Raises:
        InputError: it does not; the message names the field.
    """
    if facts is None:
        _check_requests(workload)
    span = _synthetic_span(workload) if facts is None else _trace_span(workload, facts)
    days = span.seconds / _SECONDS_PER_DAY
    if days > MOST_DAYS:
        shown_days = f"{days:,.0f}" if days < _MOST_SHOWN_DAYS else f"{days:.0e}"
        raise InputError(
            f"workload.{span.field}: the load takes {shown_days} days to arrive; "
            f"allowed: {MOST_DAYS} days"
        )
    intervals = [_look_seconds(policy) for policy in policies if scales(policy)]
    if intervals and span.seconds > _MOST_LOOKS * min(intervals):
        raise InputError(
            f"workload.{span.field}: the load takes {days:,.1f} days to arrive, in which a planner "
            f"that looks every {min(intervals)} s looks {span.seconds / min(intervals):,.0f} "
            f"times; allowed: {_MOST_LOOKS:,} times"
        )


def _check_requests(workload: Workload) -> None:
    # A KV load's concurrency is each candidate's own, and 1 or more. An integer of the
    # configuration may be greater than any float.
    load = min(workload.concurrency or workload.request_rate or 1, 10 * _MOST_REQUESTS)
    sessions = (workload.num_request_ratio or 0) * load
    turns = min(workload.turns_per_session, 10 * _MOST_REQUESTS)
    if max(sessions, 1) * turns > _MOST_REQUESTS:
        field = "turns_per_session" if turns > sessions else "num_request_ratio"
        raise InputError(
            f"workload.{field}: the load has more than {_MOST_REQUESTS:,} requests, which no "
            "replay holds"
        )


def _synthetic_span(workload: Workload) -> _Span:
    delays = (workload.turns_per_session - 1) * workload.inter_turn_delay_ms / _MS
    rate, ratio = workload.request_rate, workload.num_request_ratio or 0.0
    arriving = 0.0
    if rate is None:
        # So many sessions follow each other in each place.
        delays *= max(1.0, ratio)
    elif rate * ratio > 1:
        # So many times the rate are the requests, and so one after the other for so many seconds.
        arriving = ratio
    field = "inter_turn_delay_ms" if delays > arriving else "num_request_ratio"
    return _Span(arriving + delays, field)


def _trace_span(workload: Workload, facts: TraceFacts) -> _Span:
    if workload.replay_concurrency is not None:
        return _Span(facts.delays_ms / _MS / workload.replay_concurrency, "trace_path")
    ratio = workload.arrival_speedup_ratio
    field = "trace_path" if ratio == 1 else "arrival_speedup_ratio"
    return _Span(facts.duration_ms / _MS / ratio, field)


def _look_seconds(policy: CompositeEntry) -> int:
    fields = expand(policy, SCALING_POLICIES)
    names = ("throughput_adjustment_interval_seconds", "load_adjustment_interval_seconds")
    return min(cast("int", fields[name]) for name in names)
