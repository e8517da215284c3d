"""The arrivals of a trace at the speed at which it is replayed."""

from __future__ import annotations

import json
from pathlib import Path

from schemas.messages import TraceLoad
from spica_async.traces.check import read_requests


def write_replayed_arrivals(load: TraceLoad, target: Path) -> None:
    """Write the trace as an open-loop replay times it, without the hash ids.

    The replay's clock starts at the first arrival and runs `arrival_speedup_ratio` times as fast
    as the trace's.

    Raises:
        TraceError: if the trace does not pass its check.
        OSError: if `target` cannot be written.
    """
    source = Path(load.path)
    start_ms = min(
        (request.timestamp_ms for request in read_requests(source, block_size=load.block_size)),
        default=0.0,
    )
    with target.open("w", encoding="utf-8") as file:
        for request in read_requests(source, block_size=load.block_size):
            line = {
                "timestamp": (request.timestamp_ms - start_ms) / load.arrival_speedup_ratio,
                "input_length": request.input_length,
                "output_length": request.output_length,
            }
            file.write(json.dumps(line) + "\n")
