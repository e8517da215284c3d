"""The evaluator of children whose replays only take time."""

from __future__ import annotations

import time

from schemas.messages import EvaluationRequest, Measurement

REPLAY_SECONDS = 1.0


def evaluate(request: EvaluationRequest) -> Measurement:
    """Sleep for a second; `replay_seconds` is what that took."""
    began = time.perf_counter()
    time.sleep(REPLAY_SECONDS)
    return Measurement(
        outcome="feasible",
        report={"output_throughput_tok_s": float(len(request.evaluation_id))},
        replay_seconds=time.perf_counter() - began,
    )
