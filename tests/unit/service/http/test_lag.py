"""The measure of how late the event loop is."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import generate_latest
from structlog.testing import capture_logs

from spica_async.service.http.metrics import LATE_SECONDS, Metrics, watched_loop


async def test_a_step_that_takes_long_is_measured_and_warned_of() -> None:
    seen: list[float] = []
    measured = asyncio.Event()

    def observe(lag: float) -> None:
        seen.append(lag)
        measured.set()

    with capture_logs() as said:
        async with watched_loop(observe):
            await measured.wait()
            # What no step should do; it begins within the interval and ends after it.
            time.sleep(LATE_SECONDS + 0.2)  # noqa: ASYNC251  # as said above
            measured.clear()
            await measured.wait()
    assert max(seen) >= LATE_SECONDS
    assert "daemon.loop_late" in {entry["event"] for entry in said}


def test_the_lag_is_among_the_metrics() -> None:
    metrics = Metrics()
    metrics.lag.observe(0.003)
    lines = generate_latest(metrics.registry).decode().splitlines()
    assert 'spica_loop_lag_seconds_bucket{le="0.001"} 0.0' in lines
    assert 'spica_loop_lag_seconds_bucket{le="0.005"} 1.0' in lines
