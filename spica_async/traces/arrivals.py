"""The arrivals of a trace at the speed at which it is replayed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

from schemas.messages import TraceLoad
from spica_async.traces.check import read_requests

# Two days of the usual interval of 180 s, however long the trace is.
_MOST_WINDOWS: Final = 1000

WindowT = TypeVar("WindowT")


def windows_by_interval(
    trace: TraceLoad,
    intervals: Sequence[int],
    trace_windows: Callable[[Path, int], Sequence[WindowT]],
) -> dict[int, Sequence[WindowT]]:
    """The first windows that the planner will see while the trace is replayed in an open loop.

    The replay starts at the first arrival and divides the times by `arrival_speedup_ratio`, and so
    do these windows: at twice the speed a window holds twice the requests. There are 1000 at most.

    Args:
        trace: the trace and its speed.
        intervals: throughput intervals in seconds.
        trace_windows: makes windows of a Mooncake file and an interval in seconds.

    Raises:
        TraceError: if the trace does not pass its check.
    """
    with tempfile.TemporaryDirectory(prefix="spica-windows-") as folder:
        replayed = {each: Path(folder) / f"{n}.jsonl" for n, each in enumerate(intervals)}
        write_replayed_arrivals(
            trace, {path: 1000 * _MOST_WINDOWS * each for each, path in replayed.items()}
        )
        return {interval: trace_windows(path, interval) for interval, path in replayed.items()}


def write_replayed_arrivals(load: TraceLoad, until_ms: Mapping[Path, float]) -> None:
    """Write the trace as an open-loop replay times it, without the hash ids.

    The replay's clock starts at the first arrival and runs `arrival_speedup_ratio` times as fast
    as the trace's. The later turns of a session arrive as if answers took no time.

    Args:
        load: the trace and its speed.
        until_ms: the files to write, and up to when; a request that comes then is left out.

    Raises:
        TraceError: if the trace does not pass its check.
        OSError: if a file cannot be written.
    """
    source = Path(load.path)
    start_ms = min(
        (request.timestamp_ms for request in read_requests(source, block_size=load.block_size)),
        default=0.0,
    )
    with ExitStack() as stack:
        files = [
            (stack.enter_context(target.open("w", encoding="utf-8")), until)
            for target, until in until_ms.items()
        ]
        for request in read_requests(source, block_size=load.block_size):
            timestamp = (request.timestamp_ms - start_ms) / load.arrival_speedup_ratio
            line = {
                "timestamp": timestamp,
                "input_length": request.input_length,
                "output_length": request.output_length,
            }
            text = json.dumps(line) + "\n"
            for file, until in files:
                if timestamp < until:
                    file.write(text)
