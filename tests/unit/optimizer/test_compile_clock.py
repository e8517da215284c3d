"""How the time spent on compiling is added up."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spica_async.optimizer.compile_clock import CompileClock


def test_a_nested_call_counts_once() -> None:
    clock = CompileClock()
    for start, end in ((1.0, 2.0), (3.0, 4.0), (0.5, 5.0), (6.0, 7.0)):  # As they end.
        clock.add(start, end)
    assert clock.seconds() == 5.5


def test_what_came_before_a_moment_is_left_out() -> None:
    clock = CompileClock()
    clock.add(1.0, 3.0)
    clock.add(4.0, 5.0)
    assert clock.seconds_since(2.5) == 1.5
    assert clock.seconds_since(5.0) == 0.0


def test_to_settle_changes_no_sum() -> None:
    clock = CompileClock()
    clock.add(1.0, 3.0)
    clock.settle()
    assert (clock.seconds(), clock.seconds_since(0.0)) == (2.0, 0.0)
    clock.add(4.0, 5.0)
    clock.settle()
    clock.settle()
    assert clock.seconds() == 3.0


def test_of_jaxs_events_those_of_compiling_count() -> None:
    clock = CompileClock()
    time.sleep(0.02)  # So that the spans below do not reach back before each other.
    clock.listen("/jax/core/compile/jaxpr_trace_duration", 0.001, fun_name="f")
    clock.listen("/jax/core/compile/backend_compile_duration", 0.015)
    clock.listen("/jax/compilation_cache/cache_retrieval_time_sec", 100.0)
    assert clock.programs == 1
    assert clock.seconds() == pytest.approx(0.015, abs=1e-9)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=20))
def test_no_second_counts_twice(spans: list[tuple[float, float]]) -> None:
    clock = CompileClock()
    # Events come in the order of their ends, and two either nest or lie apart.
    ends = sorted((max(span), min(span)) for span in spans)
    floor = 0.0
    covered: list[tuple[float, float]] = []
    for end, start in ends:
        inside = [c for c in covered if c[0] < start < c[1]]
        begin = inside[0][0] if inside else start
        covered = [c for c in covered if c[0] < begin] + [(begin, end)]
        clock.add(begin, end)
        floor = max(floor, end)
    assert clock.seconds() == pytest.approx(sum(end - start for start, end in covered))
    assert clock.seconds() <= floor + 1e-9
