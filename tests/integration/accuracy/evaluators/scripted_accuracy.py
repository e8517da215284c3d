"""Stands for the engine in replay processes: every request takes as long as every other."""

from __future__ import annotations

import os

from schemas.messages import EvaluationRequest, Measurement, SyntheticLoad


def evaluate(request: EvaluationRequest) -> Measurement:
    load = request.load
    assert isinstance(load, SyntheticLoad)
    if load.concurrency == 13:
        return Measurement.failed("build_error", "no such shape")
    if load.concurrency == 99:
        os._exit(1)
    return Measurement(
        outcome="feasible", report={"mean_ttft_ms": 100.0, "mean_tpot_ms": float(load.isl) / 100}
    )
