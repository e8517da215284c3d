"""How much memory a replay child needs for a load, estimated before the replay starts.

Calibrated on resident set sizes of finished replays from 5 thousand to 200 thousand requests and
up to 328 million tokens; the estimate lay 1.0 to 2.1 times above what was measured.
"""

from __future__ import annotations

from typing import Final

from schemas.messages import Load, TraceLoad

# A child that has imported the replay and the planner and holds one system's performance data
# measures 400 MiB; other backends' and models' data are added while it lives.
_CHILD_BYTES: Final = 512 * 2**20
_BYTES_PER_REQUEST: Final = 2048
# All requests are made before the replay starts, each with its input tokens of four bytes.
_BYTES_PER_TOKEN: Final = 5
# A closed loop over a trace, and sessions of several turns, make a request when it is its turn;
# what stays are the hashes of its blocks.
_BYTES_PER_TOKEN_ON_DEMAND: Final = 1


def estimate_bytes(load: Load) -> int:
    """Peak resident set size of a child that replays `load`, in bytes, rather high than low."""
    if isinstance(load, TraceLoad):
        turns = 1
        on_demand = load.concurrency is not None
    else:
        # Each request of a synthetic load is a session of so many turns.
        turns = load.turns_per_session
        on_demand = turns > 1
    per_token = _BYTES_PER_TOKEN_ON_DEMAND if on_demand else _BYTES_PER_TOKEN
    return _CHILD_BYTES + turns * load.requests * _BYTES_PER_REQUEST + load.total_tokens * per_token
