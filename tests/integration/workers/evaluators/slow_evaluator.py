"""Takes longer to import than its evaluations may take."""

from __future__ import annotations

import time

from schemas.messages import EvaluationRequest, Measurement

time.sleep(1.5)


def evaluate(request: EvaluationRequest) -> Measurement:
    return Measurement(outcome="feasible", report={})
