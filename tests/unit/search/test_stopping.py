"""What requests to stop come to, in whatever order they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spica_async.processes.stopping import StopState
from spica_async.search.stopping import StoppedStatus, SweepStop

STATUSES: tuple[StoppedStatus, ...] = get_args(StoppedStatus)


@given(st.lists(st.sampled_from(["ready", "request", "cut_off"]), max_size=6))
def test_any_sequence_of_calls(calls: Sequence[str]) -> None:
    stop, expected = SweepStop(), "preparing"
    for call in calls:
        getattr(stop, call)()
        after = {
            ("preparing", "ready"): "working",
            ("preparing", "request"): "cut off",
            ("working", "request"): "stopping",
        }
        expected = "cut off" if call == "cut_off" else after.get((expected, call), expected)
        assert stop.state == expected
        assert stop.requested.is_set() == (expected in {"stopping", "cut off"})


@pytest.mark.parametrize("state", [StopState.PREPARING, StopState.WORKING])
@given(requests=st.lists(st.sampled_from(STATUSES), min_size=1))
def test_the_weightiest_request_counts(state: StopState, requests: list[StoppedStatus]) -> None:
    stop = SweepStop(state)
    assert stop.status == "interrupted"
    for status in requests:
        stop.request_status(status)
    assert stop.status == max(requests, key=STATUSES.index)
