"""The estimate against the memory of real replays, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.engine_samples import agg, request, synthetic

from schemas.messages import SyntheticLoad
from spica_async.engine.footprint import estimate_bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_CHILD = """
import sys
from schemas.messages import EvaluationRequest
from spica_async.engine.evaluation import evaluate, warm_up_with_planner
warm_up_with_planner()
measured = evaluate(EvaluationRequest.model_validate_json(sys.argv[1]))
assert measured.outcome == "feasible", measured.detail
# Of this program alone: the maximum that getrusage tells includes what forked it.
(peak,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(int(peak.split()[1]) * 1024)
"""


@pytest.mark.parametrize(
    "load",
    [
        synthetic(requests=50_000, isl=256, osl=4),
        synthetic(requests=20_000, isl=8192, osl=4),
        synthetic(requests=4_000, isl=8192, osl=4, turns_per_session=4),
    ],
    ids=["many requests", "many tokens", "sessions"],
)
def test_a_replay_stays_within_its_estimate(load: SyntheticLoad) -> None:
    message = request(agg(), load).model_dump_json()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, message], capture_output=True, text=True, check=True
    )
    peak = int(done.stdout)
    assert peak <= estimate_bytes(load) <= 3 * peak
